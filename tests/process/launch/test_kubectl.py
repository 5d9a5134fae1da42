"""The engine kubernetes: kubectl, against a stand-in for its server."""

import os
import pathlib
import shutil
import socket
import subprocess
import sys

import portpicker
import pytest
import yaml

from tests.support import api_server
from tfps._utils import timeouts
from tfps.launch import command as command_lib
from tfps.launch import manifests

_ROOT = pathlib.Path(__file__).parents[3]
_ENGINE = ('--engine=kubernetes', '--image=registry.example/train:1')

pytestmark = pytest.mark.skipif(
  shutil.which('kubectl') is None, reason='needs kubectl'
)


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
  """The page's commands for the shell, without those of Docker."""
  text = (_ROOT / 'launch' / 'kubernetes' / 'README.md').read_text()
  lines = text.replace('\\\n', '').splitlines()
  return [
    line.strip()
    for line in lines
    if line.startswith(('    kubectl', '    tfps'))
  ]


def test_readmes_commands_create_objects(tmp_path):
  scripts = pathlib.Path(sys.executable).parent
  (tmp_path / 'launch').symlink_to(_ROOT / 'launch')
  created = {}
  with api_server.ApiServer().running() as server:
    for command in _readmes_commands():
      server.created.clear()
      done = subprocess.run(
        ['sh', '-ec', command],
        cwd=tmp_path,
        env={
          **os.environ,
          'KUBECONFIG': str(server.config(tmp_path)),
          'PATH': f'{scripts}:{os.environ["PATH"]}',
        },
        capture_output=True,
        text=True,
        timeout=60,
      )
      assert done.returncode == 0, (command, done.stderr)
      created[command] = [each['kind'] for each in server.created]
  assert sum('JobSet' in kinds for kinds in created.values()) == 5
  assert sum(kinds == ['Secret'] for kinds in created.values()) == 1
  assert [c.split()[1] for c, kinds in created.items() if not kinds] == [
    'certs'
  ]


def test_a_cluster_without_the_kind_is_an_error(capfd, monkeypatch, tmp_path):
  with api_server.ApiServer(without='JobSet').running() as server:
    monkeypatch.setenv('KUBECONFIG', str(server.config(tmp_path)))
    assert command_lib.main([*_ENGINE, 'train.py']) == 1
  said = capfd.readouterr().err
  assert 'no matches for kind "JobSet" in version "jobset.x-k8s.io' in said
  assert 'kubectl apply failed with status 1' in said


def test_a_server_that_refuses_is_an_error(capfd, monkeypatch, tmp_path):
  port = portpicker.pick_unused_port()
  path = api_server.write_config(tmp_path, port)
  monkeypatch.setenv('KUBECONFIG', str(path))
  assert command_lib.main([*_ENGINE, 'train.py']) == 1
  said = capfd.readouterr().err
  assert f'127.0.0.1:{port}' in said
  assert 'kubectl apply failed with status 1' in said


def test_a_server_that_is_silent_is_an_error(
  capfd, monkeypatch, set_timeouts, tmp_path
):
  assert timeouts.Timeouts().kubectl_secs < 30
  set_timeouts(kubectl_secs=1.0)
  with socket.create_server(('127.0.0.1', 0)) as silent:
    path = api_server.write_config(tmp_path, silent.getsockname()[1])
    monkeypatch.setenv('KUBECONFIG', str(path))
    assert command_lib.main([*_ENGINE, 'train.py']) == 1
  assert 'kubectl apply has not ended in 1 seconds' in capfd.readouterr().err
