"""Groups of workers that change within a process."""

import pathlib

import pytest

from tests.support import commands

_PROGRAMS = pathlib.Path(__file__).parents[2] / 'programs'


@pytest.mark.exhaustive
def test_variables_and_functions_outlast_a_change_of_the_group():
  done = commands.run(_PROGRAMS / 'enabled_again.py')
  assert done.status == 0, done.output
  assert 'traced 1\n' in done.output
  assert 'count 3 /job:worker/replica:0/task:1/device:CPU:0' in done.output
