"""The programs of docs/input.md run as they stand."""

import pytest

from tests.support import pages

_PROGRAMS = pages.programs('docs/input.md')


@pytest.mark.exhaustive
@pytest.mark.parametrize('name', ['read.py', 'read_parquet.py'])
def test_a_program_visits_each_number_twice(tmp_path, name):
  program = _PROGRAMS[name]
  *_, report, visits = pages.run(tmp_path, program)
  assert f'print(queue.report())  # {report}\n' in program
  assert visits == '{np.int64(2)}'


def test_all_programs_are_run():
  assert list(_PROGRAMS) == ['read.py', 'read_parquet.py']
