"""Clusters whose workers are processes that run a program of the tests."""

import pathlib
import sys

from tfps import testing

_ROOT = pathlib.Path(__file__).parents[2]


def workers(number, program, *args, num_ps=2, **env):
  """A cluster to enter, whose workers run a program of `tests/programs`."""
  path = _ROOT / 'tests' / 'programs' / program
  command = [sys.executable, str(path), *map(str, args)]
  return testing.ProcessCluster(
    number,
    num_ps,
    commands={'worker': command},
    env={'PYTHONPATH': str(_ROOT), **env},
    preload=['tensorflow', 'keras'],
  )
