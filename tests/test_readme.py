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


def _between_graphs(program: str) -> str:
  """The program with the one line that README has for that."""
  (line,) = re.findall(r'```python\n(Strategy, .*\n)```', _README.read_text())
  changed, number = re.subn(r'^Strategy, .*\n', line, program, flags=re.M)
  assert number == 1
  assert changed != program
  return changed


def _train(folder: pathlib.Path, program: str, *command: str) -> str:
  """Runs the program; what it says, if its loss falls."""
  (folder / 'train.py').write_text(program)
  output = _run([*command, 'train.py'], folder)
  losses = [float(loss) for loss in re.findall(r'loss: (\S+)', output)]
  assert losses[-1] < losses[0] / 2
  return output


_LAUNCH = ('-m', 'tfps.launch', '--num_workers=1', '--num_ps=2')


@pytest.mark.slow
@pytest.mark.parametrize(
  'variant', [str, _between_graphs], ids=['coordinator', 'between graphs']
)
def test_the_program_trains_on_a_local_cluster(tmp_path, variant):
  output = _train(tmp_path, variant(_programs()['train.py']), *_LAUNCH)
  assert re.search(r'\[chief:0\] ps:0\s+\d+', output)
  assert re.search(r'\[chief:0\] ps:1\s+\d+', output)


@pytest.mark.slow
def test_the_program_trains_alone(tmp_path):
  output = _train(tmp_path, _programs()['train.py'])
  assert re.search(r'ps:0\s+\d+', output)
