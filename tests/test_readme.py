"""README's programs run as they stand."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

_README = pathlib.Path(__file__).parents[1] / 'README.md'
_BLOCK = re.compile(r'```python\n# (\w+\.py)\n(.*?)```', re.DOTALL)


def _programs() -> dict[str, str]:
  return dict(_BLOCK.findall(_README.read_text()))


def _run(command: list[str], folder: pathlib.Path) -> str:
  """Runs a command in an empty folder; its output, if it exits 0."""
  done = subprocess.run(
    [sys.executable, *command],
    cwd=folder,
    env=os.environ | {'TF_CPP_MIN_LOG_LEVEL': '2'},
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    timeout=240,
  )
  assert done.returncode == 0, done.stdout
  return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize('name', _programs())
def test_a_program_trains_on_a_local_cluster(tmp_path, name):
  (tmp_path / name).write_text(_programs()[name])
  launch = ['-m', 'tfps.launch', '--num_workers=1', '--num_ps=2', name]
  output = _run(launch, tmp_path)
  assert re.search(r'ps:0\s+\d+', output)
  assert re.search(r'ps:1\s+\d+', output)


@pytest.mark.slow
@pytest.mark.parametrize('name', _programs())
def test_a_program_trains_alone(tmp_path, name):
  (tmp_path / name).write_text(_programs()[name])
  assert re.search(r'ps:0\s+\d+', _run([name], tmp_path))
