"""A lock on a device, for several operations that must not be interrupted.

`tf.CriticalSection` refuses to enter one variable's section twice in a
function, as several steps in one function do.
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

_NAME = 'tfps_updates'


def exclusively(
  device: str, fn: Callable[..., Sequence[Any]], inputs: Sequence[Any]
) -> None:
  """Calls a function while no other such call on the device is in progress.

  The device's task holds the lock, and only once all inputs have come. So a
  worker that is slow, frozen or dead does not hold up the others.

  Args:
    device: where the function's operations go.
    fn: gets the inputs on that device and needs nothing else from elsewhere;
      returns the operations to wait for, which are None in eager mode.
    inputs: structures of tensors, from anywhere.
  """
  with tf.device(device):
    here = tf.nest.map_structure(tf.identity, inputs, expand_composites=True)
    mutex = tf.raw_ops.MutexV2(shared_name=_NAME)
    arrived = tf.nest.flatten(here, expand_composites=True)
    with tf.control_dependencies(arrived):
      lock = tf.raw_ops.MutexLock(mutex=mutex)
    with tf.control_dependencies([lock]):
      last = fn(*here)
    with tf.control_dependencies([op for op in last if op is not None]):
      # The lock is held for as long as its tensor is needed.
      tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)
