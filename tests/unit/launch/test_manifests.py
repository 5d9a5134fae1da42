"""Manifests for Kubernetes: what each pod gets, and what is wrong."""

import pathlib

import pytest
import yaml

from tests.support import pods as pods_lib
import tfps
from tfps.launch import job as job_lib
from tfps.launch import manifest_settings
from tfps.launch import manifests
from tfps.security import config as security_lib
from tfps.server import health_command

_FOLDER = pathlib.Path(__file__).parents[3] / 'launch' / 'kubernetes'
_SIZES = {
  'least': {},
  'many': {'num_workers': 12, 'num_ps': 3, 'num_evaluators': 1},
  'no chief': {'num_chiefs': 0, 'num_workers': 2},
}

each_kind = pytest.mark.parametrize('kind', manifests.KINDS)


def _documents(kind, program=('train.py',), settings=None, **job):
  text = manifests.render(
    job_lib.Job(program, **job),
    manifest_settings.Settings('train', kind, **settings or {}),
  )
  return list(yaml.safe_load_all(text))


def _pods(kind, **options):
  return pods_lib.pods(_documents(kind, **options))


def _objects(documents, kind):
  return [each for each in documents if each['kind'] == kind]


def _job_specs(documents):
  """The specs of all Jobs, those of a JobSet included."""
  for each in documents:
    if each['kind'] == 'Job':
      yield each['spec']
    elif each['kind'] == 'JobSet':
      for replicated in each['spec']['replicatedJobs']:
        yield replicated['template']['spec']


@each_kind
@pytest.mark.parametrize('sizes', _SIZES.values(), ids=_SIZES)
def test_each_task_has_one_pod_which_knows_it(kind, sizes):
  clusters = [
    (pod, tfps.resolve_cluster(pod.env)) for pod in _pods(kind, **sizes)
  ]
  tasks = [cluster.task for _, cluster in clusters]
  assert sorted(map(str, tasks)) == sorted(
    map(str, job_lib.Job(('train.py',), **sizes).tasks())
  )
  assert [task.job for task in tasks] == [pod.job for pod, _ in clusters]


@each_kind
@pytest.mark.parametrize('sizes', _SIZES.values(), ids=_SIZES)
def test_each_address_is_the_host_and_port_of_its_pod(kind, sizes):
  clusters = [
    (pod, tfps.resolve_cluster(pod.env))
    for pod in _pods(kind, **sizes)
    if pod.job != 'evaluator'
  ]
  (ports,) = {
    port['containerPort']
    for pod, _ in clusters
    for port in pod.container['ports']
  }
  expected = {cluster.task: f'{pod.host}:{ports}' for pod, cluster in clusters}
  for _, cluster in clusters:
    found = {task: cluster.address(task) for task in cluster.tasks()}
    assert found == expected


def test_the_service_has_the_pods_of_jobs_and_stateful_sets():
  documents = _documents('statefulset', num_evaluators=1)
  (service,) = _objects(documents, 'Service')
  spec = service['spec']
  assert spec['clusterIP'] == 'None'
  assert spec['publishNotReadyAddresses']
  for pod in pods_lib.pods(documents):
    assert spec['selector'].items() <= pod.labels.items()
    if pod.host:
      assert pod.host.partition('.')[2] == service['metadata']['name']


@each_kind
def test_the_program_gets_its_arguments_as_they_are(kind):
  program = ('-m', 'train', '--a=$(HOME)', '$$', 'a "b"\n\\c', "it's: {ü}", '')
  env = {'A': '$(HOME) $$ "b": #', 'HOME': '/home'}
  for pod in _pods(kind, program=program, env=env):
    assert pod.command() == ['python', *program]
    assert env.items() <= pod.env.items()


@each_kind
def test_statuses_below_128_end_the_job_and_others_are_tried_again(kind):
  documents = _documents(kind, max_restarts=3, num_evaluators=1)
  specs = list(_job_specs(documents))
  assert len(specs) == {'jobset': 4, 'statefulset': 3, 'tfjob': 1}[kind]
  for spec in specs:
    assert spec['backoffLimit'] == 3
    assert spec['template']['spec']['restartPolicy'] == 'Never'
    ignored, failing = spec['podFailurePolicy']['rules']
    assert ignored['action'] == 'Ignore'
    assert ignored['onPodConditions'] == [
      {'type': 'DisruptionTarget', 'status': 'True'}
    ]
    assert failing['action'] == 'FailJob'
    assert failing['onExitCodes'] == {
      'operator': 'In',
      'values': list(range(1, 128)),
    }


def test_the_operator_tells_statuses_apart():
  (tfjob,) = _objects(_documents('tfjob', max_restarts=3), 'TFJob')
  replicas = tfjob['spec']['tfReplicaSpecs']
  assert set(replicas) == {'Chief', 'PS', 'Worker'}
  assert {each['restartPolicy'] for each in replicas.values()} == {'ExitCode'}
  assert tfjob['spec']['runPolicy']['backoffLimit'] == 3


@pytest.mark.parametrize(('num_chiefs', 'job'), [(1, 'chief'), (0, 'worker')])
def test_the_chief_ends_a_jobset(num_chiefs, job):
  documents = _documents('jobset', num_chiefs=num_chiefs)
  (jobset,) = _objects(documents, 'JobSet')
  assert jobset['spec']['successPolicy'] == {
    'operator': 'All',
    'targetReplicatedJobs': [job],
  }


def test_without_a_chief_all_workers_end_a_tfjob():
  (with_chief,) = _objects(_documents('tfjob'), 'TFJob')
  (without,) = _objects(_documents('tfjob', num_chiefs=0), 'TFJob')
  assert 'successPolicy' not in with_chief['spec']
  assert without['spec']['successPolicy'] == 'AllWorkers'


@each_kind
def test_only_workers_have_gpus(kind):
  for pod in _pods(kind, gpus_per_worker=2):
    limits = pod.container['resources']['limits']
    is_worker = pod.job == 'worker'
    assert limits.get('nvidia.com/gpu') == ('2' if is_worker else None)
    hidden = pod.env.get('CUDA_VISIBLE_DEVICES')
    assert hidden == (None if is_worker else '-1')


@each_kind
def test_resources_are_of_a_job_or_of_all(kind):
  resources = {'': {'cpu': '500m'}, 'ps': {'memory': '8Gi', 'cpu': '2'}}
  found = {
    pod.job: pod.container['resources']
    for pod in _pods(kind, settings={'resources': resources})
  }
  assert found['ps'] == {
    'requests': {'cpu': '2', 'memory': '8Gi'},
    'limits': {'memory': '8Gi'},
  }
  assert found['worker']['requests'] == {'cpu': '500m', 'memory': '2Gi'}


@each_kind
def test_pods_have_no_rights(kind):
  for pod in _pods(kind, num_evaluators=1):
    assert pod.spec['securityContext']['runAsNonRoot']
    profile = pod.spec['securityContext']['seccompProfile']
    assert profile == {'type': 'RuntimeDefault'}
    assert pod.spec['automountServiceAccountToken'] is False
    assert pod.container['securityContext'] == {
      'allowPrivilegeEscalation': False,
      'readOnlyRootFilesystem': True,
      'capabilities': {'drop': ['ALL']},
    }
    assert pod.env['HOME'] == '/tmp'


@each_kind
def test_claims_and_secrets_are_in_every_pod(kind):
  settings = {'claims': {'7': '/data'}, 'secrets': {'a.b': '/etc/certs'}}
  for pod in _pods(kind, settings=settings, num_evaluators=1):
    volumes = {each.pop('name'): each for each in pod.spec['volumes']}
    mounted = {
      each['mountPath']: (volumes[each['name']], each.get('readOnly', False))
      for each in pod.container['volumeMounts']
    }
    assert mounted == {
      '/tmp': ({'emptyDir': {}}, False),
      '/data': ({'persistentVolumeClaim': {'claimName': '7'}}, False),
      '/etc/certs': ({'secret': {'secretName': 'a.b'}}, True),
    }


@each_kind
@pytest.mark.parametrize('folder', ['/certs', '/a $(HOME)/"@\\', '/data/certs'])
def test_each_pod_has_its_own_certificate(kind, folder):
  settings = {'claims': {'data': '/data'}, 'secrets': {'certs': '/certs'}}
  if folder not in ('/certs', '/data/certs'):
    settings['secrets'] = {'certs': folder}
  job = {**_SIZES['many'], 'certificates': pathlib.Path(folder)}
  for pod in _pods(kind, settings=settings, **job):
    task = tfps.resolve_cluster(pod.env).task
    expected = tfps.Security(
      f'{folder}/ca.pem',
      f'{folder}/{task.job}-{task.index}.pem',
      f'{folder}/{task.job}-{task.index}.key',
    )
    assert security_lib.Security.from_env(pod.env) == expected


@each_kind
def test_no_pod_has_the_keys_of_another_job(kind):
  job = {**_SIZES['many'], 'certificates': pathlib.Path('/certs')}
  settings = {'secrets': {'other': '/other', 'certs': '/certs'}}
  for pod in _pods(kind, settings=settings, **job):
    secrets = {
      each['secret']['secretName']: each['secret']
      for each in pod.spec['volumes']
      if 'secret' in each
    }
    assert secrets['other'] == {'secretName': 'other'}
    number = {'chief': 1, 'ps': 3, 'worker': 12, 'evaluator': 1}[pod.job]
    names = [
      f'{pod.job}-{i}.{end}' for i in range(number) for end in ('pem', 'key')
    ]
    assert secrets['certs']['items'] == [
      {'key': name, 'path': name} for name in ['ca.pem', *names]
    ]
    # What `Security.check` allows: of root, and readable by the pod's group.
    assert secrets['certs']['defaultMode'] == 0o440


# Of each job: the probes of its pods.
_PROBES = {
  'jobset': {
    'chief': {'liveness'},
    'ps': {'startup', 'readiness', 'liveness'},
    'worker': {'readiness', 'liveness'},
    'evaluator': set(),
  },
  # Its services have only ready pods, and tasks have to meet before.
  'tfjob': {
    'chief': {'liveness'},
    'ps': {'liveness'},
    'worker': {'liveness'},
    'evaluator': set(),
  },
}
_PROBES['statefulset'] = _PROBES['jobset']


def _probes(pod):
  return {
    name.removesuffix('Probe'): probe
    for name, probe in pod.container.items()
    if name.endswith('Probe')
  }


@each_kind
def test_probes_ask_the_own_server(kind, monkeypatch):
  task = '{"task": {"type": "evaluator", "index": 0}}'
  monkeypatch.setenv('TF_CONFIG', task)  # without a server
  for pod in _pods(kind, num_evaluators=1):
    found = _probes(pod)
    assert set(found) == _PROBES[kind][pod.job]
    for name, probe in found.items():
      command, subcommand, *words = probe['exec']['command']
      assert (command, subcommand) == ('tfps', 'health')
      assert words == (['--live'] if name == 'liveness' else [])
      assert health_command.main(words) == 0
      assert probe['timeoutSeconds'] > 5  # that the command itself waits


@pytest.mark.parametrize(
  ('silent_secs', 'failures'), [(0, None), (10, 3), (30.5, 4), (600, 60)]
)
def test_a_frozen_server_is_killed_after_a_while(silent_secs, failures):
  settings = {'silent_secs': silent_secs}
  for pod in _pods('jobset', settings=settings):
    probe = _probes(pod).get('liveness', {})
    assert probe.get('failureThreshold') == failures


@each_kind
def test_one_ps_at_a_time_is_evicted(kind):
  documents = _documents(kind, num_ps=3)
  (budget,) = _objects(documents, 'PodDisruptionBudget')
  assert budget['spec']['minAvailable'] == 2
  selector = budget['spec']['selector']['matchLabels']
  for pod in pods_lib.pods(documents):
    assert (selector.items() <= pod.labels.items()) == (pod.job == 'ps')


@each_kind
def test_only_pods_of_the_job_reach_its_servers(kind):
  documents = _documents(kind, num_evaluators=1)
  (policy,) = _objects(documents, 'NetworkPolicy')
  spec = policy['spec']
  assert spec['policyTypes'] == ['Ingress']
  assert spec['ingress'] == [{'from': [{'podSelector': spec['podSelector']}]}]
  selector = spec['podSelector']['matchLabels']
  for pod in pods_lib.pods(documents):
    assert selector.items() <= pod.labels.items()


@each_kind
def test_ports_for_watching_are_open(kind):
  env = {
    'TFPS_METRICS_PORT': '0.0.0.0:9400',
    'TFPS_DASHBOARD_PORT': '127.0.0.1:9500',
  }
  documents = _documents(kind, num_evaluators=1, env=env)
  (policy,) = _objects(documents, 'NetworkPolicy')
  assert policy['spec']['ingress'][1:] == [{'ports': [{'port': 9400}]}]
  for pod in pods_lib.pods(documents):
    (container,) = pod.spec['containers']
    ports = {port['name']: port['containerPort'] for port in container['ports']}
    assert ports.pop('metrics') == 9400
    assert list(ports.values()) == [2222]


@each_kind
def test_names_and_namespace_are_as_asked(kind):
  settings = {'name': 'run-7', 'namespace': 'team'}
  documents = _documents(kind, settings=settings, num_evaluators=1)
  for each in documents:
    assert each['metadata']['name'].startswith('run-7')
    assert each['metadata']['namespace'] == 'team'
  names = [(each['kind'], each['metadata']['name']) for each in documents]
  assert len(set(names)) == len(names)


def test_sigterm_has_the_time_that_is_asked():
  for pod in _pods('jobset', grace_secs=29.5):
    assert pod.spec['terminationGracePeriodSeconds'] == 30
    assert pod.spec['shareProcessNamespace']


@each_kind
def test_the_files_are_what_is_rendered_by_default(kind):
  rendered = manifests.render(
    job_lib.Job(('train.py',)), manifest_settings.Settings('train', kind)
  )
  assert (_FOLDER / kind / 'base' / 'train.yaml').read_text() == rendered


@pytest.mark.parametrize(
  ('settings', 'complaint'),
  [
    ({'image': ''}, '--image=: give the image'),
    ({'image': 'a b'}, '--image=a b'),
    ({'name': 'Train'}, '--name=Train: a name has'),
    ({'name': '7up'}, '--name=7up: a name has'),
    ({'name': 'on'}, '--name=on: a name has'),
    ({'namespace': 'A'}, '--namespace=A'),
    ({'resources': {'ps': {'cpu': 'two'}}}, '--resources: ps has cpu=two'),
    ({'resources': {'': {'a b': '1'}}}, 'every task has a b=1'),
    ({'claims': {'data': 'data'}}, "--claim=data:data: 'data' is no folder"),
    ({'secrets': {'certs': '/'}}, "--secret=certs:/: '/' is no folder"),
    ({'secrets': {'a_b': '/a'}}, '--secret=a_b: a name has'),
    ({'claims': {'a': '/tmp'}}, '/tmp is the folder of another volume'),
    (
      {'claims': {'a': '/a'}, 'secrets': {'b': '/a'}},
      '--secret=b:/a: /a is the folder of another volume, that of --claim=a:/a',
    ),
  ],
)
def test_wrong_settings_are_named(settings, complaint):
  with pytest.raises(ValueError) as caught:
    manifest_settings.Settings(**{'image': 'train', **settings})
  assert complaint in str(caught.value)


def test_a_name_that_is_too_long_for_its_pods_is_named():
  job = job_lib.Job(('train.py',), num_workers=1000)
  manifests.render(job, manifest_settings.Settings('train', name='a' * 44))
  with pytest.raises(ValueError, match='Shorten the name by 1'):
    manifests.render(job, manifest_settings.Settings('train', name='a' * 45))
