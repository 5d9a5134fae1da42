"""Clients of a server whose process gets to know its cluster anew."""

import os
import pathlib
import subprocess
import sys

_PROGRAM = pathlib.Path(__file__).parents[2] / 'programs/served_mailbox.py'


def test_a_connection_outlasts_a_change_of_the_servers_cluster():
  done = subprocess.run(
    [sys.executable, str(_PROGRAM), '5'],
    # glibc fills memory that is freed, so that its use crashes the process.
    env=os.environ | {'MALLOC_PERTURB_': '165'},
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert done.returncode == 0, done.stderr
  assert 'served 5\n' in done.stdout
