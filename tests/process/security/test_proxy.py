"""A proxy that is given commands: what it outlasts, and what is refused."""

import os
import pathlib
import signal
import socket

import pytest

from tests.support import enclosures
from tfps.security import proxy

pytestmark = enclosures.needed()


@pytest.fixture
def security(tmp_path):
  folder = enclosures.make(tmp_path / 'certs')
  return enclosures.credentials(folder, enclosures.WORKER)


@pytest.fixture
def started(security):
  with socket.create_server(('127.0.0.1', 0)) as listener:
    door = proxy.Door('ps:0', listener.fileno(), '127.0.0.1:9', enclosures.PS)
    process = proxy.start([door], security)
    process.wait()
    yield process
    process.kill()


@pytest.mark.parametrize(
  'do',
  [
    lambda process, security: process.renew(security),
    lambda process, _: process.lead('ps:0', '127.0.0.2', 9),
  ],
  ids=['renew', 'lead'],
)
def test_commands_are_taken_again_once_it_answers(
  started, security, set_timeouts, do
):
  enclosures.make(pathlib.Path(security.ca).parent)
  set_timeouts(command_secs=0.1)
  os.kill(started.pid, signal.SIGSTOP)
  for _ in range(4):
    with pytest.raises(OSError):
      do(started, security)
  set_timeouts(command_secs=30)
  os.kill(started.pid, signal.SIGCONT)
  for _ in range(2):
    do(started, security)


def test_credentials_are_renewed_any_number_of_times(started, security):
  folder = pathlib.Path(security.ca).parent
  for _ in range(4):
    enclosures.make(folder)
    for _ in range(2):
      started.renew(security)
  started.lead('ps:0', '127.0.0.2', 9)


def test_a_ca_that_would_crash_it_is_refused_and_the_certificate_taken(
  started, security, tmp_path
):
  ca = pathlib.Path(security.ca)
  other = enclosures.make(tmp_path / 'other') / 'ca.pem'
  old, both = ca.read_bytes(), ca.read_bytes() + other.read_bytes()
  ca.write_bytes(both)
  started.renew(security)
  ca.write_bytes(old)
  enclosures.make(ca.parent)
  started.renew(security)
  ca.write_bytes(both)
  for _ in range(2):
    enclosures.make(ca.parent)
    with pytest.raises(ValueError, match='Restart the task'):
      started.renew(security)
  ca.write_bytes(old)
  started.renew(security)
  started.lead('ps:0', '127.0.0.2', 9)


def test_one_that_has_ended_takes_no_command(started):
  started.kill()
  with pytest.raises(OSError):
    started.lead('ps:0', '127.0.0.2', 9)
