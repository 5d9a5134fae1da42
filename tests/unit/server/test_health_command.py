"""The command `tfps health`, without a server of TensorFlow."""

import contextlib
import json
import socket
import subprocess
import sys

import portpicker
import pytest

from tfps.server import health_command

_CLUSTER = {'ps': ['h0:2222'], 'worker': ['h1:2223']}


def _env(job, index=0, cluster=None):
  task = {'type': job, 'index': index}
  config = {'cluster': cluster or _CLUSTER, 'task': task}
  return {'TF_CONFIG': json.dumps(config)}


@contextlib.contextmanager
def _silent_port():
  """A port that takes connections, and answers nothing."""
  with socket.create_server(('127.0.0.1', 0)) as listener:
    yield listener.getsockname()[1]


def _at(port):
  """A cluster whose own ps, of another host's name, has the port."""
  return {'ps': [f'pod.of.ps:{port}'], 'worker': ['h1:2223']}


def test_a_server_that_does_not_run_is_not_ready():
  port = portpicker.pick_unused_port()
  healthy, text = health_command.check(
    _env('ps', cluster=_at(port)), timeout_secs=2
  )
  assert not healthy
  assert text == f'ps:0 at 127.0.0.1:{port} is unreachable.'


def test_a_server_that_does_not_run_is_not_frozen():
  port = portpicker.pick_unused_port()
  env = _env('ps', cluster=_at(port))
  healthy, text = health_command.check(env, live=True, timeout_secs=2)
  assert healthy
  assert text == f'ps:0 at 127.0.0.1:{port} does not run.'


@pytest.mark.parametrize('live', [False, True])
def test_a_server_that_is_silent_is_unhealthy(live):
  with _silent_port() as port:
    env = _env('ps', cluster=_at(port))
    healthy, text = health_command.check(env, live=live, timeout_secs=0.5)
  assert not healthy
  assert text.endswith('does not answer within 0.5 seconds.')


def test_an_evaluator_has_no_server():
  healthy, text = health_command.check(_env('evaluator'), timeout_secs=1)
  assert healthy
  assert text == 'evaluator:0 has no server to ask.'


def test_a_chief_without_an_address_has_no_server():
  cluster = {**_CLUSTER, 'chief': ['']}
  healthy, text = health_command.check(
    _env('chief', cluster=cluster), timeout_secs=1
  )
  assert healthy
  assert text == 'chief:0 has no server to ask.'


def test_without_a_task_nothing_is_healthy():
  with pytest.raises(ValueError, match=r'neither TF_CONFIG nor .* --address'):
    health_command.check({}, timeout_secs=1)


def test_a_wrong_environment_is_one_line_and_status_1(monkeypatch, capsys):
  monkeypatch.setenv('TF_CONFIG', '{')
  assert health_command.main([]) == 1
  said = capsys.readouterr()
  assert not said.out
  assert len(said.err.splitlines()) == 1
  assert 'TF_CONFIG' in said.err


@pytest.mark.parametrize(
  ('words', 'complaint'),
  [
    (['--address=h0'], 'its port is missing'),
    (['--timeout_secs=0'], "'0' is no number of seconds"),
    (['--timeout_secs=soon'], "'soon' is no number of seconds"),
    (['ps'], 'unrecognized arguments: ps'),
  ],
)
def test_wrong_options_are_named(capsys, words, complaint):
  with pytest.raises(SystemExit) as caught:
    health_command.main(words)
  assert caught.value.code == 2
  assert complaint in capsys.readouterr().err


def test_the_command_does_not_import_tensorflow():
  name = 'tfps.server.health_command'
  program = f'import sys; import {name}; print(*sys.modules, sep="\\n")'
  output = subprocess.check_output([sys.executable, '-c', program], text=True)
  modules = output.split()
  assert 'grpc' in modules
  assert 'tensorflow' not in modules
