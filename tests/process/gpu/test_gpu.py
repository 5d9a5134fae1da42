"""Workers compute on a GPU what they compute without one; ps take none of it.

All tasks see the same GPU, and share its memory.
"""

import functools
import glob
import json
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

from tests.programs import gpu
from tests.support import commands
from tests.support import starting
from tests.support import waiting
from tfps import testing

_PROGRAM = pathlib.Path(gpu.__file__)

_ALL_WAYS = tuple(gpu.WAYS)
# Of ways whose floats have 8 or 11 bits, where they differ in the last one.
_ROUGH = {'codecs': 2e-2, 'mixed precision': 1e-2}
_DEVICES = ('/dev/nvidia[0-9]*', '/dev/dxg')  # of Linux, and of WSL
_LIST_GPUS = """
import tensorflow as tf
print(len(tf.config.list_physical_devices('GPU')))
"""


@functools.cache
def _problem() -> str:
  """Why there is no GPU for these tests; empty if there is one.

  This process must not use it, as it would keep some of its memory. TensorFlow
  is only asked where a driver is, for that takes seconds.
  """
  if not any(glob.glob(pattern) for pattern in _DEVICES):
    return 'this machine has no NVIDIA GPU'
  asked = subprocess.run(
    [sys.executable, '-c', _LIST_GPUS],
    capture_output=True,
    text=True,
    timeout=120,
    check=True,
  )
  return '' if int(asked.stdout) else 'TensorFlow sees no GPU'


pytestmark = [
  pytest.mark.gpu,
  pytest.mark.skipif(bool(_problem()), reason=_problem()),
]


def _environment(*, with_gpu: bool) -> dict[str, str]:
  """Variables of a program that has the GPU, or has none.

  Without them, a GPU would multiply float32 with the 11 bits of TF32.
  """
  if with_gpu:
    return {'NVIDIA_TF32_OVERRIDE': '0'}
  return {'CUDA_VISIBLE_DEVICES': '-1'}


def _train_coordinator(folder, ways, **env):
  with testing.ProcessCluster(
    1,
    2,
    commands={
      'chief': [sys.executable, str(_PROGRAM), 'coordinator', folder, *ways]
    },
    env=env,
    preload=['tensorflow', 'keras'],
  ) as cluster:
    status = cluster.wait('chief', 0, timeout_secs=200)
    assert status == 0, cluster.log('chief', 0)[-3000:]


def _train_between(folder, ways, *, form='between', num_workers=1, **env):
  with starting.workers(
    num_workers, 'gpu.py', form, folder, *ways, **env
  ) as cluster:
    _wait_for(cluster)


def _train_on_two_devices(folder, ways, **env):
  _train_between(folder, ways, form='two devices', **env)


def _train_in_process(folder, ways, **env):
  ended = commands.run(_PROGRAM, 'in process', folder, *ways, **env)
  assert ended.status == 0, ended.output[-3000:]


def _wait_for(cluster):
  for task in cluster.cluster.tasks('worker'):
    status = cluster.wait(task.job, task.index, timeout_secs=200)
    assert status == 0, cluster.log(task.job, task.index)[-3000:]


def _train_with_and_without(train, folder, *args, **kwargs):
  """Trains with the GPU and without; returns the two folders."""
  folders = []
  for with_gpu in (True, False):
    own = folder / ('with' if with_gpu else 'without')
    own.mkdir()
    train(str(own), *args, **kwargs, **_environment(with_gpu=with_gpu))
    folders.append(own)
  return folders


def _check_equal(weights, wanted, tolerance=1e-4):
  for own, other in zip(
    np.load(weights).values(), np.load(wanted).values(), strict=True
  ):
    np.testing.assert_allclose(own, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
  ('train', 'jobs', 'num_devices'),
  [
    pytest.param(_train_coordinator, ['chief', 'worker'], 1, id='coordinator'),
    pytest.param(_train_in_process, ['chief', 'worker'], 1, id='in process'),
    pytest.param(_train_between, ['worker'], 1, id='between graphs'),
    pytest.param(_train_on_two_devices, ['worker'], 2, id='two devices'),
  ],
)
def test_it_computes_what_cpus_compute(tmp_path, train, jobs, num_devices):
  own, without = _train_with_and_without(train, tmp_path, _ALL_WAYS)
  found = json.loads((own / 'found.json').read_text())
  assert found['computed'] == [f'GPU:{i}' for i in range(num_devices)]
  assert found['jobs'] == jobs
  assert found['restored']
  for device in found['variables']:
    assert device.startswith('/job:ps/')
    assert device.endswith('/device:CPU:0')
  other = json.loads((without / 'found.json').read_text())
  assert other['computed'] == [f'CPU:{i}' for i in range(num_devices)]
  assert other['jobs'] == []
  for way in _ALL_WAYS:
    name = f'{way}.npz'
    _check_equal(own / name, without / name, _ROUGH.get(way, 1e-4))


def test_workers_share_it(tmp_path):
  own, without = _train_with_and_without(
    _train_between, tmp_path, ['sync'], num_workers=2
  )
  _check_equal(own / 'sync.npz', without / 'sync.npz')


def test_hybrid_replication_computes_what_cpus_compute(tmp_path):
  def train(folder, **env):
    with starting.workers(
      2, 'hybrid.py', 'fit', 'adam', 6, folder, **env
    ) as cluster:
      _wait_for(cluster)

  own, without = _train_with_and_without(train, tmp_path)
  for index in range(2):
    _check_equal(own / f'{index}.npz', without / f'{index}.npz')


def _add_up(folder, num_workers, **env):
  with starting.workers(
    num_workers, 'all_reduce.py', 'fit', 'adamw', 14, folder, num_ps=0, **env
  ) as cluster:
    _wait_for(cluster)
    return [cluster.log('worker', i) for i in range(num_workers)]


@pytest.mark.parametrize(
  ('num_workers', 'env'),
  [
    pytest.param(1, {}, id='one worker'),
    pytest.param(2, {'ALGORITHM': 'RING'}, id='a ring of two'),
    # NCCL refuses workers that share a GPU, unless their hosts differ.
    pytest.param(2, {'OWN_HOSTS': '1', 'NCCL_DEBUG': 'INFO'}, id='NCCL'),
  ],
)
def test_adding_up_gradients_gives_what_cpus_give(tmp_path, num_workers, env):
  logs = []

  def train(folder, **environment):
    logs.append(_add_up(folder, num_workers, **env, **environment))

  own, without = _train_with_and_without(train, tmp_path)
  assert all('GPU:0' in re.search('variables on .*', log)[0] for log in logs[0])
  for log in logs[0]:
    assert ('ncclCommInitRank' in log) == ('OWN_HOSTS' in env)
  for index in range(num_workers):
    _check_equal(own / f'{index}.npz', without / f'{index}.npz')


def test_nccl_outlasts_a_worker_that_returns(tmp_path):
  env = {'OWN_HOSTS': '1', 'SLOW': '0', **_environment(with_gpu=True)}
  with starting.workers(
    2, 'all_reduce.py', 'fit', 'adam', 60, tmp_path, num_ps=0, **env
  ) as cluster:

    def wait_for(what, number=1):
      waiting.until(
        lambda: cluster.log('worker', 0).count(what) >= number,
        timeout_secs=100,
        say=lambda: cluster.log('worker', 0)[-3000:],
      )

    wait_for('\nat 1')
    cluster.kill('worker', 1)
    wait_for('adds up gradients with nobody')
    cluster.start('worker', 1)
    wait_for('adds up gradients with worker:1', 2)
    (tmp_path / 'go').touch()
    _wait_for(cluster)
  _check_equal(tmp_path / '0.npz', tmp_path / '1.npz', 0.0)


@pytest.mark.parametrize(
  ('env', 'expected'),
  [
    pytest.param({}, 'CUDA_VISIBLE_DEVICES', id='that NCCL finds shared'),
    pytest.param({'HIDE_GPU': '1'}, 'adds up by', id='that one does not see'),
  ],
)
def test_a_gpu_is_refused(tmp_path, env, expected):
  with starting.workers(
    2, 'all_reduce.py', 'fit', 'adamw', 14, tmp_path, num_ps=0, **env
  ) as cluster:
    statuses = [cluster.wait('worker', i, timeout_secs=100) for i in range(2)]
    logs = [cluster.log('worker', i) for i in range(2)]
  assert statuses == [1, 1], logs
  assert any(expected in log for log in logs), logs
