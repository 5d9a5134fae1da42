"""README's programs run as they stand."""

import pathlib
import re

import pytest

from tests.support import commands
from tests.support import pages

_README = pathlib.Path(__file__).parents[3] / 'README.md'


def _between_graphs(program: str) -> str:
  """The program with the one line that README has for that."""
  (line,) = re.findall(r'```python\n(Strategy, .*\n)```', _README.read_text())
  changed, number = re.subn(r'^Strategy, .*\n', line, program, flags=re.M)
  assert number == 1
  assert changed != program
  return changed


def _check_that_loss_falls(output: str) -> None:
  losses = [float(loss) for loss in re.findall(r'loss: (\S+)', output)]
  assert losses[-1] < losses[0] / 2


def test_the_command_trains_on_a_local_cluster(tmp_path, capfd):
  program = pages.write(tmp_path, pages.programs('README.md')['train.py'])
  done = commands.launch(
    capfd, '--num_workers=1', '--num_ps=2', program, cwd=tmp_path
  )
  assert done.status == 0, done.output
  _check_that_loss_falls(done.output)
  assert re.search(r'\[chief:0\] ps:0\s+\d+', done.output)
  assert re.search(r'\[chief:0\] ps:1\s+\d+', done.output)


@pytest.mark.exhaustive
def test_the_program_trains_between_graphs(tmp_path, capfd):
  program = pages.write(
    tmp_path, _between_graphs(pages.programs('README.md')['train.py'])
  )
  done = commands.launch(
    capfd, '--num_workers=1', '--num_ps=2', program, cwd=tmp_path
  )
  assert done.status == 0, done.output
  _check_that_loss_falls(done.output)
  assert re.search(r'\[chief:0\] ps:1\s+\d+', done.output)


@pytest.mark.exhaustive
def test_the_program_trains_alone(tmp_path):
  lines = pages.run(tmp_path, pages.programs('README.md')['train.py'])
  output = '\n'.join(lines)
  _check_that_loss_falls(output)
  assert re.search(r'ps:0\s+\d+', output)
