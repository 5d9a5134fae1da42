"""Namespaces of a process, which a command enters."""

import subprocess
import sys

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
