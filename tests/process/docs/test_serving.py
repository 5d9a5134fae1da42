"""The program of docs/serving.md runs as it stands."""

import os
import pathlib
import re
import subprocess
import sys

_PAGE = pathlib.Path(__file__).parents[3] / 'docs' / 'serving.md'


def test_it_serves_what_the_model_predicts(tmp_path):
  (program,) = re.findall(
    r'```python\n# follow.py\n(.*?)```', _PAGE.read_text(), re.DOTALL
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
  assert done.stdout.strip().splitlines()[-2:] == ['True', '1']
