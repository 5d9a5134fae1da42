"""Benchmarks run, and write what they find."""

import json
import pathlib
import subprocess
import sys

import pytest

from benchmarks import __main__ as command
from tests.support import commands

_ROOT = pathlib.Path(__file__).parents[3]


def _check_written(folder, output, *names):
  """That what was found is on the screen and in a file; the file's path."""
  (path,) = folder.glob('*.json')
  written = json.loads(path.read_text())
  found = [entry['name'] for entry in written['benchmarks']]
  assert set(names) <= set(found)
  assert all(name in output for name in found)
  assert all(entry['median_ratio'] > 0 for entry in written['benchmarks'])
  return path


@pytest.mark.exhaustive
def test_the_command_runs_a_benchmark_and_writes_json(tmp_path):
  done = commands.run(
    *('-m', 'benchmarks', '--quick', 'placement', f'--output={tmp_path}'),
    cwd=_ROOT,
  )
  assert done.status == 0, done.output
  _check_written(tmp_path, done.output, 'placement: ResNet-50, 2 ps')


@pytest.mark.exhaustive
def test_models_are_fitted_in_turns(tmp_path):
  command = [sys.executable, '-m', 'benchmarks', '--quick', 'keras_fit']
  done = subprocess.run(
    [*command, f'--output={tmp_path}'],
    cwd=_ROOT,
    capture_output=True,
    text=True,
    timeout=240,
  )
  assert done.returncode == 0, done.stderr
  name = 'fit: MLP, short executions, one process'
  _check_written(tmp_path, done.stdout, name)


# The wire's benchmark is like it.
@pytest.mark.exhaustive
def test_tasks_that_take_orders_are_compared_and_drawn(tmp_path, capsys):
  command.main(['--quick', 'null_step', f'--output={tmp_path}'])
  path = _check_written(
    tmp_path,
    capsys.readouterr().out,
    'null step: coordinator, scalar, 1 worker',
    'null step: between graphs, scalar, 1 worker',
  )
  assert path.with_name(f'{path.stem}-null_step.png').exists()
  tables = json.loads(path.read_text())['tables']
  assert [table['name'] for table in tables] == ['null_step']
