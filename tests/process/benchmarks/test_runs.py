"""Benchmarks run, and write what they find."""

import json
import pathlib
import subprocess
import sys

import pytest

from benchmarks import __main__ as command
from benchmarks import observed
from benchmarks.peers import comparison
from tests.support import commands
from tests.support import enclosures

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


@pytest.mark.exhaustive
@enclosures.needed()
@enclosures.preloads()
def test_plain_and_secured_steps_take_turns(tmp_path):
  command.main(['--quick', 'secure', f'--output={tmp_path}'])
  (path,) = tmp_path.glob('*.json')
  (table,) = json.loads(path.read_text())['tables']
  assert table['name'] == 'secure'
  for turns in table['measured']['null step'].values():
    assert all(turn['steps'] and turn['cpu_secs'] for turn in turns)


@pytest.mark.exhaustive
def test_steps_are_looked_at_in_turns(tmp_path, monkeypatch):
  monkeypatch.setattr(observed, '_EVERY_SECS', 0.05)
  command.main(['--quick', 'observed', f'--output={tmp_path}'])
  (path,) = tmp_path.glob('*.json')
  (table,) = json.loads(path.read_text())['tables']
  assert len(table['measured']) == 1 + len(observed._OBSERVERS)
  for (turn,) in table['measured'].values():
    assert turn['steps'] > 0
    assert turn['cpu_secs'] > 0


# The wire's benchmark is like it; `tests/cluster/benchmarks` has its trainers.
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


def _tables(folder):
  (path,) = folder.glob('*.json')
  return {
    table['name']: table for table in json.loads(path.read_text())['tables']
  }


# That of the embedding is like it.
@pytest.mark.exhaustive
def test_steady_speed_is_told_beside_stock(tmp_path):
  command.main(['--quick', 'dense', f'--output={tmp_path}'])
  table = _tables(tmp_path)['dense-mlp']
  rates = {row[0]: float(row[1]) for row in table['rows']}
  assert set(rates) == {'stock, 1 a call', 'coordinator, 20 a call'}
  assert all(rate > 0 for rate in rates.values())
  for turns in table['measured'].values():
    assert turns[0]['cpu_secs'] > 0
    assert turns[0]['num_bytes'] > 1e6 * turns[0]['steps']  # both ways


@pytest.mark.exhaustive
def test_the_memory_of_a_growing_table_is_told(tmp_path):
  command.main(['--quick', 'growth', f'--output={tmp_path}'])
  table = _tables(tmp_path)['growth']
  assert [row[0] for row in table['rows']] == [
    'as it is',
    'TF_ENABLE_ONEDNN_OPTS=0',
  ]
  assert '264 bytes' in table['title']


# Peers that are not installed are left out.
@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_peers_are_told_beside_ours(tmp_path):
  command.main(['--quick', 'peers', f'--output={tmp_path}'])
  tables = _tables(tmp_path)
  assert set(tables) == {'peers-mlp', 'peers-clicks', 'peers-features'}
  for name, table in tables.items():
    names = {row[0] for row in table['rows']}
    is_in = 'MultiWorkerMirroredStrategy, 20 a call' in names
    assert is_in == (name != 'peers-features')
    told = ' '.join([*names, *table['notes']])
    assert all(name in told for name in comparison.PEERS)
    for turns in table['measured'].values():
      assert turns[0]['cpu_secs'] > 0
