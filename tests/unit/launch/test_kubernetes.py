"""The options of the engine kubernetes."""

import pytest
import yaml

from tfps.launch import command as command_lib

_ENGINE = ('--engine=kubernetes', '--image=registry.example/train:1')


def _printed(capsys, *words):
  assert command_lib.main([*_ENGINE, '--dry_run', *words]) == 0
  return list(yaml.safe_load_all(capsys.readouterr().out))


def _containers(value):
  """All containers within a document."""
  if isinstance(value, dict):
    yield from value.get('containers', [])
    for each in value.values():
      yield from _containers(each)
  elif isinstance(value, list):
    for each in value:
      yield from _containers(each)


@pytest.mark.parametrize(
  ('kind', 'objects'),
  [
    ('jobset', ['ConfigMap', 'JobSet']),
    ('statefulset', ['ConfigMap', 'Service', 'StatefulSet', 'Job', 'Job']),
    ('tfjob', ['TFJob']),
  ],
)
def test_a_dry_run_prints_the_objects(capsys, kind, objects):
  documents = _printed(capsys, f'--kind={kind}', 'train.py')
  found = [each['kind'] for each in documents]
  assert found == [*objects, 'PodDisruptionBudget', 'NetworkPolicy']


@pytest.mark.parametrize('kind', ['jobset', 'statefulset', 'tfjob'])
def test_a_job_without_ps_has_no_object_for_them(capsys, kind):
  words = (f'--kind={kind}', '--num_ps=0', '--num_workers=2', 'train.py')
  documents = _printed(capsys, *words)
  kinds = {each['kind'] for each in documents}
  assert kinds.isdisjoint(['PodDisruptionBudget', 'StatefulSet'])
  names = [each['name'] for each in _containers(documents)]
  assert len(names) == 2  # of the chief and of the workers
  assert '"ps"' not in yaml.safe_dump_all(documents)


def test_an_image_stands_for_the_engine(capsys):
  words = ['--dry_run', '--image=registry.example/train:1', 'train.py']
  assert command_lib.main(words) == 0
  assert 'kind: JobSet\n' in capsys.readouterr().out


def test_options_are_in_the_objects(capsys):
  documents = _printed(
    capsys,
    *('--name=run', '--namespace=team', '--num_ps=2', '--max_restarts=4'),
    *('--env=A=B', '--resources=memory=1Gi', '--resources=ps:memory=9Gi'),
    *('--resources=ps:cpu=3', '--claim=data:/data', '--secret=certs:/certs'),
    *('--silent_secs=0', '--grace_secs=30', '--', '/app/train.py', '--x=1'),
  )
  assert {each['metadata']['namespace'] for each in documents} == {'team'}
  found = list(_containers(documents))
  assert len(found) == 3
  chief, ps, _ = found
  assert ps['image'] == 'registry.example/train:1'
  assert ps['command'] == ['python', '/app/train.py', '--x=1']
  assert {'name': 'A', 'value': 'B'} in ps['env']
  assert ps['resources']['requests'] == {'cpu': '3', 'memory': '9Gi'}
  assert chief['resources']['requests'] == {'cpu': '1', 'memory': '1Gi'}
  assert 'livenessProbe' not in ps
  text = yaml.safe_dump(documents)
  assert 'backoffLimit: 4' in text
  assert 'terminationGracePeriodSeconds: 30' in text


def test_pods_are_enclosed_with_certificates_that_are_not_on_this_machine(
  capsys,
):
  words = '--secret=certs:/certs', '--secure_directory=/certs', 'train.py'
  found = list(_containers(_printed(capsys, *words)))
  assert len(found) == 3
  for each in found:
    assert each['command'] == [
      *('python', '-m', 'tfps.security.enclose_command', '--'),
      *('python', 'train.py'),
    ]


@pytest.mark.parametrize(
  ('words', 'complaint'),
  [
    (['--engine=kubernetes'], '--image=: give the image'),
    ([*_ENGINE, '--kind=pod'], "invalid choice: 'pod'"),
    ([*_ENGINE, '--name=A'], '--name=A: a name has'),
    ([*_ENGINE, '--preload=os'], '--preload: pods are not forked'),
    ([*_ENGINE, '--log_dir=x'], '--log_dir: `kubectl logs` has'),
    ([*_ENGINE, '--hosts=h1'], '--hosts is for --engine=hosts'),
    ([*_ENGINE, '--hostfile=h'], '--hostfile is for --engine=hosts'),
    ([*_ENGINE, '--resources=pss:cpu=1'], "names the job 'pss'"),
    ([*_ENGINE, '--resources=ps'], "'ps' is not JOB:NAME=N"),
    ([*_ENGINE, '--resources=cpu='], "'cpu=' is not JOB:NAME=N"),
    ([*_ENGINE, '--claim=data'], "'data' is not NAME:/FOLDER"),
    (
      [*_ENGINE, '--secure_directory=/certs', '--secret=certs:/other'],
      '--secure_directory=/certs: pods have no such folder',
    ),
    (
      [*_ENGINE, '--claim=a:/a', '--claim=a:/b'],
      '--claim=a:/b: it is at /a already',
    ),
    ([*_ENGINE, '--num_workers=0'], "'0' is not 1, 2, 3"),
  ],
)
def test_wrong_options_are_named(capsys, words, complaint):
  with pytest.raises(SystemExit) as caught:
    command_lib.main([*words, '--dry_run', 'train.py'])
  assert caught.value.code == 2
  said = capsys.readouterr()
  assert complaint in said.err
  assert not said.out


def test_without_kubectl_the_error_says_what_to_do(
  capsys, monkeypatch, tmp_path
):
  monkeypatch.setenv('PATH', str(tmp_path))
  with pytest.raises(SystemExit) as caught:
    command_lib.main([*_ENGINE, 'train.py'])
  assert caught.value.code == 2
  said = capsys.readouterr().err
  assert f'kubectl is not in PATH={tmp_path}. Install it' in said
