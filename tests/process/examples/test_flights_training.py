"""The example trains on clusters, and leaves its results."""

import json
import re

import keras
import pytest
from sklearn import metrics

from tests.support import commands
from tests.support import examples

data, features = examples.modules('flights', 'data', 'features')

FOLDER = examples.FOLDER / 'flights'
NUM_EXAMPLES = 20_000


@pytest.fixture(scope='module')
def flights():
  return data.load()


@pytest.fixture(scope='module')
def some(flights):
  """What `train.py --max_examples` takes of them."""
  return flights.sample(NUM_EXAMPLES, random_state=1)


@pytest.fixture(scope='module')
def split(some):
  return features.split(some)


def test_a_missing_package_ends_the_program(tmp_path):
  program = tmp_path / 'without_sklearn.py'
  program.write_text(
    'import runpy, sys\n'
    'sys.modules["sklearn"] = None\n'
    f'sys.path.insert(0, {str(FOLDER)!r})\n'
    'runpy.run_path(sys.argv[1], run_name="__main__")\n'
  )
  done = commands.run(program, FOLDER / 'train.py', cwd=tmp_path)
  assert done.status == 1
  assert 'sklearn' in done.output
  assert "Install the extra 'examples'" in done.output


def train(capfd, mode, folder, *launcher_options):
  done = commands.launch(
    capfd,
    *launcher_options,
    f'--log_dir={folder}/logs',
    FOLDER / 'train.py',
    f'--mode={mode}',
    f'--output_dir={folder}',
    f'--max_examples={NUM_EXAMPLES}',
    '--epochs=2',
    '--batch_size=512',
    '--steps_per_execution=2',
    '--baseline_auc=0.7',
  )
  assert done.status == 0, done.output
  assert (folder / 'report.png').read_bytes().startswith(b'\x89PNG')
  return json.loads((folder / 'result.json').read_text()), done.output


def check_checkpoint(folder, split, auc):
  """That it has the model whose AUC was reported."""
  path = folder / 'checkpoint' / 'wide_and_deep.keras'
  logits = keras.models.load_model(path).predict(
    split.held_out.batches(), verbose=0
  )
  found = metrics.roc_auc_score(split.held_out.late, logits)
  assert found == pytest.approx(auc, abs=1e-4)


@pytest.mark.exhaustive
def test_training_with_a_coordinator_leaves_its_results(tmp_path, capfd, split):
  result, output = train(
    capfd, 'coordinator', tmp_path, '--num_workers=1', '--num_ps=2'
  )
  assert result['mode'] == 'coordinator'
  assert result['steps'] == 52
  assert len(result['bytes_per_ps']) == 2
  assert result['auc'] > 0.65
  assert '20,000 flights: ' in output
  assert re.search(r'ps:1 +\d+ +[\d,]+\n', output)
  assert re.search(r'step 52 of 52, [\d.]+ steps/s, 0:00:00 left', output)
  assert re.search(r'26/26 - .*val_auc: 0\.', output)
  check_checkpoint(tmp_path, split, result['auc'])


@pytest.mark.exhaustive
def test_training_between_graphs_leaves_its_results(tmp_path, capfd, split):
  result, output = train(
    capfd,
    'between_graph',
    tmp_path,
    '--num_workers=2',
    '--num_ps=1',
    '--num_chiefs=0',
  )
  assert result['mode'] == 'between_graph'
  assert result['auc'] > 0.65
  assert '[worker:0] ps:0' in output
  assert 'steps/s' in output
  check_checkpoint(tmp_path, split, result['auc'])
