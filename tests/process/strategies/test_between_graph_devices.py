"""Between graphs, a step has a replica on each of a worker's devices.

How many logical CPUs a process has is fixed before it uses one, so that these
workers are processes of their own.
"""

import json
import pathlib

import numpy as np
import pytest

from tests.programs import devices
from tests.support import commands
from tests.support import small
from tests.support import starting

_ROOT = pathlib.Path(__file__).parents[3]
_PROGRAM = _ROOT / 'tests' / 'programs' / 'devices.py'
_BYTES = 8 * devices.SIZE  # of a gradient
# Batches 0 and 1 make the first step, and so on.
_MEANS = 2 * np.arange(devices.STEPS) + 0.5


@pytest.mark.exhaustive
def test_one_worker_is_like_one_device(tmp_path):
  ended = commands.run(_PROGRAM, 'alone', tmp_path, PYTHONPATH=str(_ROOT))
  assert ended.status == 0, ended.output
  found = json.loads((tmp_path / 'found.json').read_text())
  assert found['replicas'] == 2
  for name in ('train', 'bounded'):
    _check_train(found[name], _MEANS, _MEANS)
  # Of 0 to 3 and 4 and 5, by halves; then of batches of a replica each.
  assert found['own loop']['sums'] == [0.5 + 2.5, 4 + 5, 0 + 1, 2 + 3]
  assert found['own loop']['number'] == pytest.approx(-9 - 1)
  assert found['repaired']['number'] == pytest.approx(-_MEANS[:3].sum() - 1000)
  _check_fit(found['fit'], tmp_path)
  _check_queue(found['queue'], tmp_path)


def _check_train(found, means, own_means):
  assert found['number'] == pytest.approx(-means.sum())
  assert found['step'] == found['iterations'] == devices.STEPS
  assert found['batch'] == pytest.approx(own_means.mean())
  assert found['devices'] == ['/device:CPU:0', '/device:CPU:1']
  assert found['pulled'] == pytest.approx(_BYTES, rel=0.02)
  assert found['pushed'] == pytest.approx(_BYTES, rel=0.02)


def _check_fit(found, folder):
  alone = devices.make_model()
  x, y = devices.X, devices.Y
  history = alone.fit(x, y, 7, epochs=2, shuffle=False, verbose=0)
  _check_model(alone, history, found, folder / 'weights.npz')
  assert found['iterations'] == int(alone.optimizer.iterations)
  np.testing.assert_allclose(
    found['evaluated'], alone.evaluate(x, y, 7, verbose=0), rtol=1e-5
  )
  np.testing.assert_allclose(
    found['predicted'], alone.predict(x, 7, verbose=0), rtol=1e-4, atol=1e-6
  )


def _check_queue(found, folder):
  alone = devices.make_model()
  x, y = devices.X[: devices.QUEUED], devices.Y[: devices.QUEUED]
  history = alone.fit(x, y, 4, shuffle=False, verbose=0)
  _check_model(alone, history, found, folder / 'queue.npz')


def _check_model(alone, history, found, weights):
  for own, wanted in zip(
    np.load(weights).values(), alone.get_weights(), strict=True
  ):
    if wanted.dtype.kind == 'f':  # else it is a seed
      np.testing.assert_allclose(own, wanted, rtol=1e-4, atol=1e-5)
  for name, values in history.history.items():
    np.testing.assert_allclose(found['history'][name], values, rtol=1e-5)


@pytest.mark.exhaustive
def test_workers_push_once_for_their_devices(tmp_path):
  with starting.workers(2, 'devices.py', 'together', tmp_path) as cluster:
    for task in cluster.cluster.tasks('worker'):
      status = cluster.wait(task.job, task.index, timeout_secs=200)
      assert status == 0, cluster.log(task.job, task.index)[-3000:]
  for index in range(2):
    found = json.loads((tmp_path / f'worker-{index}.json').read_text())
    # The second worker's batches are by 100 above the first one's.
    _check_train(found, _MEANS + 50, _MEANS + 100 * index)
    assert found['fitted'] == devices.STEPS // 2
  weights = np.load(tmp_path / 'weights.npz').values()
  wanted = small.alone('adam', devices.STEPS // 2, 2)
  for own, value in zip(weights, wanted, strict=True):
    np.testing.assert_allclose(own, value, atol=1e-4)
