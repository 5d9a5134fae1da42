"""The model of clicks learns on a cluster, and what is served follows."""

import json
import re

import pytest

from tests.support import commands
from tests.support import examples

rows, synthetic = examples.modules('criteo', 'rows', 'synthetic')
_FOLDER = examples.FOLDER / 'criteo'
_CAPACITY = 8_000
_SHORT = (f'--capacity={_CAPACITY}', '--steps_per_execution=4')
_CLUSTER = ('--num_workers=2', '--num_ps=2')


@pytest.fixture(scope='module')
def clicks(tmp_path_factory):
  folder = tmp_path_factory.mktemp('clicks')
  rows.write_parquet(folder, synthetic.Clicks(1).batches(30_000, 2_048), 5_000)
  return folder


@pytest.mark.exhaustive
def test_what_is_served_follows_what_is_trained(tmp_path, capfd, clicks):
  done = commands.launch(
    capfd,
    *_CLUSTER,
    '--num_evaluators=1',
    f'--log_dir={tmp_path}/logs',
    _FOLDER / 'train.py',
    *_SHORT,
    '--deltas_every_secs=1',
    f'--data={clicks}',
    f'--output_dir={tmp_path}/run',
  )
  assert done.status == 0, done.output
  result = json.loads((tmp_path / 'run/result.json').read_text())
  assert result['auc'] > 0.66
  assert result['evicted'] > 0
  # Beside the capacity, there may be those of a look-up.
  assert 1_000 < result['rows'] < _CAPACITY + 5_000 < result['seen']
  served = json.loads((tmp_path / 'run/served.json').read_text())
  assert served[-1]['auc'] == pytest.approx(result['auc'], abs=1e-4)
  versions = re.findall(
    r'\[evaluator:0\] base \d+, delta \d+: held-out AUC (\S+)', done.output
  )
  assert len(versions) == len(served)


@pytest.mark.exhaustive
def test_the_demo_compares_three_ways(tmp_path, clicks):
  done = commands.run(
    _FOLDER / 'demo.py',
    f'--data={clicks}',
    f'--output_dir={tmp_path}',
    '--',
    *_SHORT,
  )
  assert done.status == 0, done.output
  growing, static, alone = (
    float(re.search(rf'\n{name} +(0\.\d+) ', done.output)[1])
    for name in ('growing', 'static', 'alone')
  )
  assert min(growing, static, alone) > 0.66
  assert growing == pytest.approx(alone, abs=0.03)
