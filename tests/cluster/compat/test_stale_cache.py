"""That the runtime can be told to forget what it has of tasks as they were."""

import concurrent.futures
import threading
import time

import pytest
import tensorflow as tf

from tfps._compat import side_executor
from tfps._compat import stale_cache

_STALE = tf.errors.AbortedError(
  None, None, 'RecvTensor expects a different device incarnation: 1 vs. 2.'
)


def _draw():
  """What the kernel of an operation that has a state gives next."""
  drawn = tf.raw_ops.RandomUniform(
    shape=[1], dtype=tf.float32, seed=7, seed2=11
  )
  return float(drawn[0])


@pytest.fixture(autouse=True)
def _fresh():
  stale_cache.forget_if_stale(_STALE)


def test_kernels_are_made_anew_that_were_for_other_tasks():
  first, second = _draw(), _draw()
  assert first != second
  stale_cache.forget_if_stale(_STALE)
  assert _draw() == first


@pytest.fixture
def hanging(coordinator):
  """An execution, and what has it end; give it a number."""
  with tf.device('/job:ps/task:0'):
    queue = tf.queue.FIFOQueue(1, tf.int32)
  taken = coordinator.schedule(tf.function(queue.dequeue))
  time.sleep(0.5)
  return taken, queue.enqueue


def test_who_executes_may_go_on_while_kernels_are_forgotten(hanging):
  taken, go_on = hanging
  with concurrent.futures.ThreadPoolExecutor(1) as pool:
    forgotten = pool.submit(stale_cache.forget_if_stale, _STALE)
    time.sleep(0.5)
    waited = not forgotten.done()
    go_on(7)
    assert taken.fetch() == 7
    forgotten.result(30)
  assert waited


def test_what_hangs_is_not_waited_for_for_ever(hanging):
  taken, go_on = hanging
  drawn = _draw()
  for _ in range(2):
    with pytest.raises(stale_cache.StillExecutingError, match='After'):
      stale_cache.forget(0.2)
  threads = [thread.name for thread in threading.enumerate()]
  assert threads.count('tfps-forget') == 1
  with side_executor.run_aside('/CPU:0'):  # others need not stay away
    pass
  go_on(7)
  assert taken.fetch() == 7
  stale_cache.forget()
  assert _draw() == drawn


def test_kernels_are_kept_when_something_else_has_failed():
  first = _draw()
  stale_cache.forget_if_stale(tf.errors.UnavailableError(None, None, 'gone'))
  assert _draw() != first
