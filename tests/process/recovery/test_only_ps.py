"""The only ps comes back at an address that no other task was told."""

import re

import pytest
import tensorflow as tf

from tests.support import losses
from tests.support import turns
from tests.support import waiting
import tfps
from tfps import testing

KINDS = turns.rarely(
  [tfps.ParameterServerStrategy, tfps.BetweenGraphStrategy],
  but=[tfps.ParameterServerStrategy],
)


class Training:
  """Counts with one ps; a strategy of the same cluster may take over."""

  def __init__(self, kind, cluster, folder, timeout_secs=60):
    self.events = losses.Events()
    self._kind, self._cluster = kind, cluster
    self._recovery = tfps.Recovery(
      folder,
      every_secs=0.2,
      on_event=self.events,
      timeout_secs=timeout_secs,
    )
    self.begin()

  def begin(self):
    self.strategy = self._kind(self._cluster, recovery=self._recovery)
    self._trainer = (
      self.strategy
      if self._kind is tfps.BetweenGraphStrategy
      else tfps.Coordinator(self.strategy, timeout_secs=120)
    )
    with self.strategy.scope():
      self._count = tf.Variable(0, dtype=tf.int64, name='count')

  def train(self, steps):
    self._trainer.train(
      lambda batch: losses.add_one([self._count]), losses.ones, steps=steps
    )

  def count(self):
    return self._trainer.surviving(lambda: int(self._count))


@pytest.mark.exhaustive
@pytest.mark.parametrize('kind', KINDS)
def test_it_is_found_at_another_address(tmp_path, kind):
  with testing.ProcessCluster(1, 1) as processes:
    training = Training(kind, processes.cluster, tmp_path)
    training.train(20)
    processes.kill('ps', 0)
    processes.start('ps', 0, elsewhere=True)
    assert training.count() == 20
    training.train(30)
    assert training.events.count('moved', 'ps:0') == [1]
    training.begin()  # with the old address
    assert training.count() == 30
    training.strategy.close()
    assert processes.wait('ps', 0, timeout_secs=60) == 0


@pytest.mark.parametrize('kind', KINDS)
def test_one_that_does_not_come_back_is_named_with_its_address(tmp_path, kind):
  with testing.ProcessCluster(1, 1) as processes:
    training = Training(kind, processes.cluster, tmp_path, timeout_secs=2)
    training.train(20)
    processes.kill('ps', 0)
    where = processes.cluster.address(tfps.Task('ps', 0))
    with pytest.raises(
      tfps.errors.DeadlineError,
      match=rf'^ps:0 at {where} was lost and has not been restarted within 2 '
      'seconds. Start it again, there or at another address',
    ):
      training.count()
    training.strategy.close()


@pytest.mark.exhaustive
def test_workers_that_start_later_find_it_by_each_other(
  start_workers, tmp_path
):
  cluster = start_workers(
    2, 'survive.py', 'train', 10**9, tmp_path, 60, 0, 0, num_ps=1
  )

  def num_executions(index):
    return len(re.findall(r'^at ', cluster.log('worker', index), re.M))

  def go_on():
    before = [num_executions(index) for index in range(2)]
    waiting.until(
      lambda: all(num_executions(i) > before[i] + 10 for i in range(2)),
      timeout_secs=120,
    )

  go_on()
  cluster.kill('ps', 0)
  cluster.kill('worker', 1)
  cluster.start('ps', 0, elsewhere=True)
  cluster.start('worker', 1)
  go_on()
  cluster.kill('worker', 0)
  cluster.start('worker', 0)
  go_on()
  for index in range(2):
    assert 'ps:0 has come back at ' in cluster.log('worker', index)
