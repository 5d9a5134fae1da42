import contextlib
import socket
import threading
import time

import pytest

from tfps import errors
from tfps.cluster import spec as spec_lib
from tfps.server import dumps
from tfps.server import task_monitor as task_monitor_lib

PS_0 = spec_lib.Task('ps', 0)
WORKER_1 = spec_lib.Task('worker', 1)


def watch(addresses, in_flight=()):
  return task_monitor_lib.TaskMonitor(addresses, lambda: dict(in_flight))


@pytest.fixture
def silent_address(set_timeouts):
  """Takes connections and never says anything, as a frozen task does."""
  set_timeouts(probe_secs=0.3)
  with contextlib.closing(socket.create_server(('127.0.0.1', 0))) as server:
    yield f'127.0.0.1:{server.getsockname()[1]}'


@pytest.fixture
def free_address():
  with contextlib.closing(socket.create_server(('127.0.0.1', 0))) as server:
    address = f'127.0.0.1:{server.getsockname()[1]}'
  return address


def test_a_frozen_task_is_waited_for_until_the_deadline(silent_address):
  watched = watch({PS_0: silent_address})
  with pytest.raises(
    errors.DeadlineError,
    match=f'tracing: ps:0 at {silent_address} does not answer',
  ):
    watched.wait_while_hung('tracing', 0.1)


def test_a_dead_task_is_not_waited_for(free_address):
  watched = watch({PS_0: free_address})
  watched.wait_while_hung('tracing', 60)
  assert watched.incarnations() == {('ps', 0): None}


def test_an_error_names_the_silent_tasks(silent_address, free_address):
  watched = watch({PS_0: silent_address, WORKER_1: free_address})
  message = str(watched.error('join', 30))
  assert message == (
    'join: not done after 30 seconds: '
    f'ps:0 at {silent_address} does not answer, '
    f'worker:1 at {free_address} is unreachable.'
  )


def test_an_error_writes_what_this_process_does(
  monkeypatch, capsys, free_address
):
  stalls = dumps.Stalls()
  monkeypatch.setattr(dumps, 'stalls', lambda: stalls)
  watch({WORKER_1: free_address}).error('join', 30)
  text = capsys.readouterr().err
  assert text.startswith('tfps: join takes too long. Dump of all tasks')
  assert 'in test_an_error_writes_what_this_process_does' in text


def test_a_call_gives_its_result():
  assert watch({}).call('adding', lambda: 1 + 1, 60) == 2


def test_a_call_raises_what_the_function_raises():
  with pytest.raises(ZeroDivisionError):
    watch({}).call('dividing', lambda: 1 / 0, 60)


def test_a_call_that_takes_too_long_is_left_behind(free_address):
  opened = threading.Event()
  watched = watch({PS_0: free_address})
  began = time.monotonic()
  with pytest.raises(errors.DeadlineError, match=r'saving: .*ps:0'):
    watched.call('saving', opened.wait, 0.1)
  assert time.monotonic() - began < 60
  opened.set()
