"""The program of docs/embeddings.md runs as it stands."""

import os
import pathlib
import re
import subprocess
import sys

_PAGE = pathlib.Path(__file__).parents[3] / 'docs' / 'embeddings.md'


def test_it_prints_how_many_keys_tables_have(tmp_path):
  (program,) = re.findall(
    r'```python\n# any_ids.py\n(.*?)```', _PAGE.read_text(), re.DOTALL
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
  *_, printed = done.stdout.strip().splitlines()
  assert f'# {printed}\n' in program
