"""The program of docs/input.md runs as it stands."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

_PAGE = pathlib.Path(__file__).parents[3] / 'docs' / 'input.md'


@pytest.mark.exhaustive
def test_the_program_visits_each_number_twice(tmp_path):
  (program,) = re.findall(
    r'```python\n# \w+\.py\n(.*?)```', _PAGE.read_text(), re.DOTALL
  )
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
