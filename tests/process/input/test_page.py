"""The programs of docs/input.md run as they stand."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

_PAGE = pathlib.Path(__file__).parents[3] / 'docs' / 'input.md'
_PROGRAMS = dict(
  re.findall(r'```python\n# (\w+\.py)\n(.*?)```', _PAGE.read_text(), re.DOTALL)
)


@pytest.mark.exhaustive
@pytest.mark.parametrize('name', ['read.py', 'read_parquet.py'])
def test_a_program_visits_each_number_twice(tmp_path, name):
  program = _PROGRAMS[name]
  done = subprocess.run(
    [sys.executable, '-c', program],
    cwd=tmp_path,
    env=os.environ | {'TF_CPP_MIN_LOG_LEVEL': '2'},
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    timeout=120,
  )
  assert done.returncode == 0, done.stdout
  *_, report, visits = done.stdout.strip().splitlines()
  assert f'print(queue.report())  # {report}\n' in program
  assert visits == '{np.int64(2)}'


def test_all_programs_are_run():
  assert list(_PROGRAMS) == ['read.py', 'read_parquet.py']
