"""README's programs run as they stand."""

import pathlib
import re

import pytest

from tests.support import commands

_README = pathlib.Path(__file__).parents[3] / 'README.md'
_BLOCK = re.compile(r'```python\n# (\w+\.py)\n(.*?)```', re.DOTALL)


def _programs() -> dict[str, str]:
  return dict(_BLOCK.findall(_README.read_text()))


def _between_graphs(program: str) -> str:
  """The program with the one line that README has for that."""
  (line,) = re.findall(r'```python\n(Strategy, .*\n)```', _README.read_text())
  changed, number = re.subn(r'^Strategy, .*\n', line, program, flags=re.M)
  assert number == 1
  assert changed != program
  return changed


def _write(folder: pathlib.Path, program: str) -> pathlib.Path:
  path = folder / 'train.py'
  path.write_text(program)
  return path


def _check_that_loss_falls(output: str) -> None:
  losses = [float(loss) for loss in re.findall(r'loss: (\S+)', output)]
  assert losses[-1] < losses[0] / 2


def test_the_command_trains_on_a_local_cluster(tmp_path, capfd):
  program = _write(tmp_path, _programs()['train.py'])
  done = commands.launch(
    capfd, '--num_workers=1', '--num_ps=2', program, cwd=tmp_path
  )
  assert done.status == 0, done.output
  _check_that_loss_falls(done.output)
  assert re.search(r'\[chief:0\] ps:0\s+\d+', done.output)
  assert re.search(r'\[chief:0\] ps:1\s+\d+', done.output)


@pytest.mark.exhaustive
def test_the_program_trains_between_graphs(tmp_path, capfd):
  program = _write(tmp_path, _between_graphs(_programs()['train.py']))
  done = commands.launch(
    capfd, '--num_workers=1', '--num_ps=2', program, cwd=tmp_path
  )
  assert done.status == 0, done.output
  _check_that_loss_falls(done.output)
  assert re.search(r'\[chief:0\] ps:1\s+\d+', done.output)


@pytest.mark.exhaustive
def test_the_program_trains_alone(tmp_path):
  done = commands.run(_write(tmp_path, _programs()['train.py']), cwd=tmp_path)
  assert done.status == 0, done.output
  _check_that_loss_falls(done.output)
  assert re.search(r'ps:0\s+\d+', done.output)
