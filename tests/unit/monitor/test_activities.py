"""Stacks of all threads."""

import pathlib
import subprocess
import sys

_STACKS = pathlib.Path(__file__).parents[2] / 'programs' / 'stacks.py'


def test_stacks_are_found_whatever_a_collection_of_garbage_lets_go_on():
  done = subprocess.run(
    [sys.executable, _STACKS], stdout=subprocess.PIPE, text=True, timeout=60
  )
  assert done.stdout == '10\n'
