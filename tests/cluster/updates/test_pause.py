"""A snapshot of synchronous training lies between two steps of all workers."""

import concurrent.futures
import threading

import pytest
import tensorflow as tf

from tests.support import slopes
from tests.support import waiting
import tfps
from tfps.updates import sessions
from tfps.updates.sync import ps_state

pytestmark = pytest.mark.tfps_cluster(workers=2, ps=2)


class _Held:
  """Passes batches on, of which those from the `after`th on wait."""

  def __init__(self, after):
    self._after = after
    self._num_passed = 0
    self._lock = threading.Lock()
    self.release = threading.Event()

  def __call__(self, batch):
    with self._lock:
      self._num_passed += 1
      is_held = self._num_passed > self._after
    if is_held:
      assert self.release.wait(60)
    return batch


@pytest.mark.exhaustive
@pytest.mark.parametrize('steps_before', [0, 1, 2])
def test_it_waits_for_the_second_update_of_a_step(tfps_cluster, steps_before):
  strategy = tfps.ParameterServerStrategy(
    tfps_cluster.cluster, updates=tfps.updates.Sync(timeout_secs=60)
  )
  first, second = slopes.Slopes(strategy), slopes.Slopes(strategy)
  held = _Held(after=2 * steps_before)

  def step(batch):
    first.step(batch)
    second.step(tf.numpy_function(held, [batch], tf.float64))

  def number(model):
    return -float(model.number.numpy())

  with (
    tfps.Coordinator(strategy, timeout_secs=100) as coordinator,
    concurrent.futures.ThreadPoolExecutor(2) as pool,
  ):
    is_paused = threading.Event()

    def pause():
      with sessions.of(strategy).paused():
        found = number(first), number(second), int(coordinator.global_step)
        is_paused.set()
      return found

    training = pool.submit(
      coordinator.train,
      step,
      lambda context: tf.data.Dataset.from_tensors(
        tf.constant(1.0, tf.float64)
      ).repeat(),
      steps=6,
      steps_per_execution=1,
    )
    try:
      waiting.until(lambda: number(first) > steps_before, timeout_secs=60)
      pausing = pool.submit(pause)
      # As soon as it is paused, or if that is waited for, as it should be.
      is_paused.wait(1)
    finally:
      held.release.set()
    assert pausing.result(60) == (steps_before + 1,) * 3
    training.result(60)
    assert (number(first), number(second)) == (6, 6)
  strategy.close()


def test_an_update_that_does_not_end_is_told(tfps_cluster):
  strategy = tfps.ParameterServerStrategy(
    tfps_cluster.cluster, updates=tfps.updates.Sync(timeout_secs=0.1)
  )
  sync_session = sessions.of(strategy)
  zeros = ps_state.Point(*[0] * len(ps_state.Point._fields))
  first = zeros._replace(leader=1)
  sync_session.state.points.assign([first, zeros, zeros, zeros])
  with (
    pytest.raises(tf.errors.DeadlineExceededError, match=r'within 0\.1 .*pol'),
    sync_session.paused(),
  ):
    pass
  strategy.close()


@pytest.mark.quick
def test_one_that_was_ended_by_a_new_beginning_is_an_error(tfps_cluster):
  strategy = tfps.ParameterServerStrategy(
    tfps_cluster.cluster, updates=tfps.updates.Sync()
  )
  sync_session = sessions.of(strategy)
  with pytest.raises(tf.errors.AbortedError), sync_session.paused():
    sync_session.start()
  with sync_session.paused():
    pass
  strategy.close()
