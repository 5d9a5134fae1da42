"""Namespaces of a process, which a command enters."""

import os
import pathlib
import subprocess
import sys
import tempfile

import pytest

from tests.support import enclosures
from tfps.security import namespaces

pytestmark = enclosures.needed()

_PROGRAM = """
import os
from tfps.security import namespaces
namespaces.enter_new()
print(*(os.readlink(f'/proc/self/ns/{kind}') for kind in ('user', 'net')))
input()
"""


def test_they_are_entered_although_the_process_has_ended():
  with subprocess.Popen(
    [sys.executable, '-c', _PROGRAM],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
  ) as process:
    own = process.stdout.readline().split()
    command = namespaces.command_within(
      process.pid, ['readlink', '/proc/self/ns/user', '/proc/self/ns/net']
    )
    process.communicate('')
  done = subprocess.run(command, capture_output=True, text=True, check=False)
  assert (done.stdout.split(), done.stderr) == (own, '')
  assert len(set(own)) == 2


# Becomes a user, enters namespaces, and runs a line there.
_DOES = """
import ctypes, os, sys
from tfps.security import namespaces
user = int(sys.argv[1])
if user != os.getuid():
  os.setgroups([])
  os.setgid(user)
  os.setuid(user)
  ctypes.CDLL(None).prctl(4, 1)  # as if it had always been that user's
namespaces.enter_new()
assert (os.getuid(), os.getgid()) == (user, user)
exec(sys.argv[2])
"""


@pytest.fixture
def others_file():
  """The path of a file that only the user 1234 may read."""
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, 'private')
    path.touch(0o600)
    try:
      os.chown(path, 1234, 1234)
      os.chown(folder, 1234, 1234)
    except OSError as error:
      pytest.skip(f'takes root: {error}')
    yield path


def _do(user, line):
  subprocess.run([sys.executable, '-c', _DOES, str(user), line], check=True)


@pytest.mark.parametrize(
  'line',
  [
    'open({path!r})',
    'os.chmod({path!r}, 0o644)',
    'os.setgroups([1]); os.setgid(1234); os.setuid(1234); open({path!r}, "w")',
  ],
  ids=['reads', 'changes', 'becomes another'],
)
def test_root_has_the_rights_of_root_there(others_file, line):
  _do(0, line.format(path=str(others_file)))


@pytest.mark.parametrize(('user', 'may'), [(1234, True), (1235, False)])
def test_others_are_the_same_there(others_file, user, may):
  _do(user, f'assert os.access({str(others_file)!r}, os.R_OK) == {may}')
