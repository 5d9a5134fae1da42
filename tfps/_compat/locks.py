"""Order of locks and handles in functions."""

import functools

from tensorflow.python.framework import auto_control_deps

_IN_ANY_ORDER = frozenset(
  ['MutexV2', 'ConsumeMutexLock', 'FIFOQueueV2', 'VarHandleOp']
)
# Executed only if something uses the handle.
_IF_USED = frozenset(['MutableHashTableV2'])


@functools.cache
def let_devices_go_on() -> None:
  """Stops functions from waiting for one device's lock to use another's.

  A `tf.function` executes stateful operations in the order of the program
  unless they use different resources, which it cannot recognize for these. To
  make a handle does nothing to what it is a handle of.
  """
  auto_control_deps.MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS |= _IN_ANY_ORDER
  auto_control_deps.SKIPPED_ORDER_INSENSITIVE_STATEFUL_OPS |= _IF_USED
