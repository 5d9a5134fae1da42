"""Where executions wait on a ps until they are let go, without a thread there.

Each waits for a turn, which is a number. Who waits says so before, in a count
that whoever opens the gate reads, both while they have the lock. So there is
one token for each, in a queue. The tokens come before the count is taken back,
as who opens the gate may be cut short in between.

Who waits for a turn must not take the token of who waits for the one before, so
that there are two queues, in turns. A token may be left where an execution was
cancelled: after waiting, one looks again.
"""

import tensorflow as tf

from tfps._compat import locks as compat


class WaitQueue:
  """One place to wait.

  Args:
    name: of the gate; unique on its device.
    device: that of the ps.
  """

  def __init__(self, name: str, device: str) -> None:
    self._name = name
    self._device = device

  def wait(self, turn: tf.Tensor) -> tf.Operation:
    """Ends once the gate is opened for the turn, or for nothing."""
    with tf.device(self._device):
      taken = tf.cond(
        tf.equal(turn % 2, 0), lambda: self._take(0), lambda: self._take(1)
      )
      return tf.identity(taken).op

  def open(self, parity: int, number: tf.Tensor) -> tf.Operation:
    """Lets so many go that wait for even turns, or for odd ones."""
    with tf.device(self._device):
      tokens = tf.zeros(tf.reshape(number, [1]), tf.int64)
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


def of_point(point: int, job: str, device: str) -> WaitQueue:
  """That at which workers wait for a point of a job."""
  return WaitQueue(f'tfps_gate_{job}_{point}', device)
