"""Tasks that are told to end leave nothing half done."""

import re
import sys
import threading

import pytest
import tensorflow as tf

from tests import waiting
import tfps
from tfps import testing

pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def processes():
  with testing.ProcessCluster(2, 2) as processes:
    yield processes


def ones(context):
  return tf.data.Dataset.from_tensors(1).repeat()


class Told:
  """A hook that tells a task to end at a step, and starts it again."""

  def __init__(self, processes, job, index):
    self._processes = processes
    self._task = job, index
    self._thread = None
    self.status = None

  def __call__(self, progress):
    if self._thread is None and progress.step >= 100:
      self._thread = threading.Thread(target=self._act)
      self._thread.start()
    if progress.moment == 'end':
      self._thread.join()

  def _act(self):
    self._processes.terminate(*self._task)
    self.status = self._processes.wait(*self._task, timeout_secs=30)
    self._processes.start(*self._task)


@pytest.mark.parametrize(
  'task', [('worker', 1), ('ps', 0)], ids=['a worker', 'a ps']
)
def test_a_task_that_leaves_loses_nothing_and_repeats_nothing(
  processes, tmp_path, task
):
  processes.heal()
  strategy = tfps.ParameterServerStrategy(
    processes.cluster, recovery=tfps.Recovery(tmp_path, every_secs=3600)
  )
  with strategy.scope():
    counters = [
      tf.Variable(0, dtype=tf.int64, trainable=False) for _ in range(4)
    ]

  def step(batch):
    for counter in counters:
      counter.assign_add(1)

  seen = []
  told = Told(processes, *task)
  with tfps.Coordinator(strategy, timeout_secs=120) as coordinator:
    coordinator.train(
      step,
      ones,
      steps=1_500,
      steps_per_execution=5,
      hooks=[told, lambda progress: seen.append(progress.step)],
    )
    assert told.status == 143
    assert {int(counter) for counter in counters} == {1_500}
  # Not even what the last cut had not yet: it was made for this.
  assert seen == sorted(seen)
  waiting.until(
    lambda: 'Leaving on SIGTERM with status 143' in processes.log(*task)
  )


def test_a_chief_that_leaves_goes_on_where_it_was(tmp_path):
  program = [
    *(sys.executable, '-m', 'tfps.testing.chaos.campaign_task'),
    *('--mode=fit', '--steps=1000', '--every_secs=3600'),
    f'--directory={tmp_path}',
  ]
  with testing.ProcessCluster(
    1, 1, commands={'chief': program}, preload=['tensorflow', 'keras']
  ) as cluster:
    waiting.until(lambda: len(numbers(cluster, 'at')) > 20, timeout_secs=120)
    cluster.terminate('chief', 0)
    assert cluster.wait('chief', 0, timeout_secs=30) == 143
    before = len(numbers(cluster, 'at'))
    cluster.start('chief', 0)
    assert cluster.wait('chief', 0, timeout_secs=120) == 0
    done = numbers(cluster, 'at')
    assert done[before] >= done[before - 1]
    assert numbers(cluster, 'count')[-1] >= 1_000


def numbers(cluster, what):
  """The steps that the chief has reached, or counted, as it has said them."""
  found = re.findall(rf'^{what} (\d+)', cluster.log('chief', 0), re.MULTILINE)
  return [int(step) for step in found]
