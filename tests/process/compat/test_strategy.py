"""A strategy that connects after others of its process."""

import pathlib

from tests.support import commands

_PROGRAM = pathlib.Path(__file__).parents[2] / 'programs/connects_twice.py'


# Of its own, as the runtime keeps the device filters of the first strategy.
def test_ps_know_where_one_is_that_another_has_taken_over():
  ended = commands.run(_PROGRAM)
  assert ended.status == 0, ended.output[-3000:]
  assert 'repaired 1' in ended.output.splitlines()
