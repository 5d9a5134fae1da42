"""Queues on a ps in which executions wait without occupying a thread there.

An execution waits at a version. Before it does, it increments a count under the
lock; a worker that releases waiters reads the count under the lock and enqueues
one token for each. Tokens are enqueued before the count is reset, since the
releasing worker may fail in between.

A waiter must not take a token meant for the version before, so even and odd
versions have a queue each. A cancelled execution may leave a token behind:
after waiting, an execution checks the state again.
"""

from collections.abc import Sequence

import tensorflow as tf

from tfps._compat import locks as compat


class WaitQueue:
  """Two queues of tokens, for even and odd versions.

  Args:
    name: name of the queue; unique on its device.
    device: device of the ps.

  Attributes:
    device: as given.
  """

  def __init__(self, name: str, device: str) -> None:
    self.device = device
    self._name = name

  def wait(self, version: tf.Tensor) -> tf.Operation:
    """Waits for a token at a version; the token may be a stale one."""
    with tf.device(self.device):
      taken = tf.cond(
        tf.equal(version % 2, 0), lambda: self._take(0), lambda: self._take(1)
      )
      return tf.identity(taken).op

  def enqueue(self, parity: int, tokens: tf.Tensor) -> tf.Operation:
    """Enqueues tokens for executions that wait at even or odd versions."""
    with tf.device(self.device):
      return tf.raw_ops.QueueEnqueueManyV2(
        handle=self._queue(parity), components=[tokens]
      )

  def _take(self, parity: int) -> tf.Tensor:
    (token,) = tf.raw_ops.QueueDequeueV2(
      handle=self._queue(parity), component_types=[tf.int64]
    )
    return tf.ensure_shape(token, [])

  def _queue(self, parity: int) -> tf.Tensor:
    compat.let_devices_go_on()
    return tf.raw_ops.FIFOQueueV2(
      component_types=[tf.int64],
      shapes=[[]],
      shared_name=f'{self._name}_{parity}',
    )


def release(queues: Sequence[WaitQueue], counts: tf.Tensor) -> tf.Tensor:
  """Releases waiting executions; returns a scalar once it is done.

  Args:
    queues: in which they wait.
    counts: how many wait in each queue at an even and at an odd version; int64
      of shape [len(queues), 2].
  """
  with tf.device(queues[0].device):
    counts = tf.reshape(counts, [-1])
    tokens = tf.zeros(tf.reduce_sum(counts, keepdims=True), tf.int64)
    pieces = iter(tf.split(tokens, counts))
    sent = [
      queue.enqueue(parity, next(pieces))
      for queue in queues
      for parity in range(2)
    ]
    with tf.control_dependencies(sent):
      return tf.constant(0)


def for_point(point: int, job: str, device: str) -> WaitQueue:
  """Returns the queue in which workers wait at a point.

  Args:
    point: number of the point.
    job: name of the job; unique on the ps.
    device: device of the ps.
  """
  return WaitQueue(f'tfps_wait_{job}_{point}', device)
