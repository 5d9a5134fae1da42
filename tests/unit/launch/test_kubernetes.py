"""The engine kubernetes: its options, and kubectl against a stand-in."""

import os
import pathlib
import shlex
import shutil
import socket
import subprocess
import sys

import portpicker
import pytest
import yaml

from tests.support import api_server
from tfps.launch import command as command_lib
from tfps.launch import kubernetes
from tfps.launch import manifests

_ROOT = pathlib.Path(__file__).parents[3]
_ENGINE = ('--engine=kubernetes', '--image=registry.example/train:1')

needs_kubectl = pytest.mark.skipif(
  shutil.which('kubectl') is None, reason='needs kubectl'
)


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


@pytest.mark.parametrize(
  ('words', 'complaint'),
  [
    (['--engine=kubernetes'], '--image=: give the image'),
    ([*_ENGINE, '--kind=pod'], "invalid choice: 'pod'"),
    ([*_ENGINE, '--name=A'], '--name=A: a name has'),
    ([*_ENGINE, '--preload=os'], '--preload: pods are not forked'),
    ([*_ENGINE, '--log_dir=x'], '--log_dir: `kubectl logs` has'),
    ([*_ENGINE, '--hosts=h1'], '--hosts: Kubernetes chooses'),
    ([*_ENGINE, '--hostfile=h'], '--hostfile: Kubernetes chooses'),
    ([*_ENGINE, '--resources=pss:cpu=1'], "names the job 'pss'"),
    ([*_ENGINE, '--resources=ps'], "'ps' is not JOB:NAME=N"),
    ([*_ENGINE, '--resources=cpu='], "'cpu=' is not JOB:NAME=N"),
    ([*_ENGINE, '--claim=data'], "'data' is not NAME:/FOLDER"),
    ([*_ENGINE, '--num_ps=0'], "'0' is not 1, 2, 3"),
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


@needs_kubectl
@pytest.mark.parametrize('kind', manifests.KINDS)
def test_kubectl_creates_the_objects(capfd, monkeypatch, tmp_path, kind):
  words = [f'--kind={kind}', '--num_evaluators=1', 'train.py']
  with api_server.ApiServer().running() as server:
    monkeypatch.setenv('KUBECONFIG', str(server.config(tmp_path)))
    assert command_lib.main([*_ENGINE, *words]) == 0
  said = capfd.readouterr().out
  created = [_as_given(each) for each in server.created]
  assert command_lib.main([*_ENGINE, '--dry_run', *words]) == 0
  assert created == list(yaml.safe_load_all(capfd.readouterr().out))
  assert said.count(' created\n') == len(created)
  assert 'kubectl logs --selector=app.kubernetes.io/instance=train' in said
  queries = {query['fieldValidation'][0] for query in server.queries}
  assert queries == {'Strict'}


def _as_given(created):
  """An object without what kubectl has added to it."""
  added = 'kubectl.kubernetes.io/last-applied-configuration'
  annotations = created['metadata'].pop('annotations')
  assert list(annotations) == [added]
  assert created['metadata'].pop('namespace') == 'default'
  return created


def _readmes_commands():
  """The page's commands for the shell, without that of Docker."""
  text = (_ROOT / 'launch' / 'kubernetes' / 'README.md').read_text()
  lines = text.replace('\\\n', '').splitlines()
  return [
    shlex.split(line)
    for line in lines
    if line.startswith(('    kubectl', '    tfps'))
  ]


@needs_kubectl
@pytest.mark.parametrize('words', _readmes_commands(), ids=' '.join)
def test_readmes_commands_create_objects(tmp_path, words):
  scripts = pathlib.Path(sys.executable).parent
  with api_server.ApiServer().running() as server:
    done = subprocess.run(
      words,
      cwd=_ROOT,
      env={
        **os.environ,
        'KUBECONFIG': str(server.config(tmp_path)),
        'PATH': f'{scripts}:{os.environ["PATH"]}',
      },
      capture_output=True,
      text=True,
      timeout=60,
    )
  assert done.returncode == 0, done.stderr
  assert 'JobSet' in {each['kind'] for each in server.created}


@needs_kubectl
def test_a_cluster_without_the_kind_is_an_error(capfd, monkeypatch, tmp_path):
  with api_server.ApiServer(without='JobSet').running() as server:
    monkeypatch.setenv('KUBECONFIG', str(server.config(tmp_path)))
    assert command_lib.main([*_ENGINE, 'train.py']) == 1
  said = capfd.readouterr().err
  assert 'no matches for kind "JobSet" in version "jobset.x-k8s.io' in said
  assert 'kubectl apply failed with status 1' in said


@needs_kubectl
def test_a_server_that_refuses_is_an_error(capfd, monkeypatch, tmp_path):
  port = portpicker.pick_unused_port()
  path = api_server.write_config(tmp_path, port)
  monkeypatch.setenv('KUBECONFIG', str(path))
  assert command_lib.main([*_ENGINE, 'train.py']) == 1
  said = capfd.readouterr().err
  assert f'127.0.0.1:{port}' in said
  assert 'kubectl apply failed with status 1' in said


@needs_kubectl
def test_a_server_that_is_silent_is_an_error(capfd, monkeypatch, tmp_path):
  assert kubernetes.APPLY_SECS < 30
  monkeypatch.setattr(kubernetes, 'APPLY_SECS', 1.0)
  with socket.create_server(('127.0.0.1', 0)) as silent:
    path = api_server.write_config(tmp_path, silent.getsockname()[1])
    monkeypatch.setenv('KUBECONFIG', str(path))
    assert command_lib.main([*_ENGINE, 'train.py']) == 1
  assert 'kubectl apply has not ended in 1 seconds' in capfd.readouterr().err
