"""That the runtime can be told what it is to forget."""

import concurrent.futures
import time

import pytest
import tensorflow as tf

from tfps._compat import members

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
  members.forget_stale_kernels(_STALE)


def test_kernels_are_made_anew_that_were_for_other_tasks():
  first, second = _draw(), _draw()
  assert first != second
  members.forget_stale_kernels(_STALE)
  assert _draw() == first


def test_who_executes_may_go_on_while_kernels_are_forgotten(coordinator):
  with tf.device('/job:ps/task:0'):
    queue = tf.queue.FIFOQueue(1, tf.int32)
  taken = coordinator.schedule(tf.function(queue.dequeue))
  with concurrent.futures.ThreadPoolExecutor(1) as pool:
    time.sleep(0.5)
    forgotten = pool.submit(members.forget_stale_kernels, _STALE)
    time.sleep(0.5)
    waited = not forgotten.done()
    queue.enqueue(7)
    assert taken.fetch() == 7
    forgotten.result(30)
  assert waited


def test_kernels_are_kept_when_something_else_has_failed():
  first = _draw()
  members.forget_stale_kernels(tf.errors.UnavailableError(None, None, 'gone'))
  assert _draw() != first
