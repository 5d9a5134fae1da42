"""What `tfps.updates.locks` needs of TensorFlow's insides."""

import functools

from tensorflow.python.framework import auto_control_deps

_OPERATIONS = frozenset(['MutexV2', 'ConsumeMutexLock', 'FIFOQueueV2'])


@functools.cache
def let_devices_go_on() -> None:
  """Keeps functions from waiting for one device's lock to use another's.

  A `tf.function` puts stateful operations in the order of the program unless
  they are about different resources, which it cannot tell of these.
  """
  auto_control_deps.MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS |= _OPERATIONS
