"""What a process itself has workers' turns do on the ps."""

from collections.abc import Callable
from typing import Any

from absl import logging
import tensorflow as tf

from tfps.updates.sync import protocol_ops as protocol_ops_lib
from tfps.updates.sync import ps_state as ps_state_lib

WORKER = tf.TensorSpec([], tf.int64)

_SPECS = {
  'start': [WORKER] * 2,
  'rest': [WORKER],
  'pause': [WORKER],
  'leave_out': [WORKER] * 2,
  'take_in': [WORKER],
  'leave_step': [WORKER],
  'dismiss': [tf.TensorSpec([ps_state_lib.MAX_WORKERS], tf.int64)],
}


class Calls:
  """Functions of numbers, which are traced as this is made.

  Args:
    sync_ops: whose methods they are, by their names.
  """

  def __init__(self, sync_ops: protocol_ops_lib.SyncOps) -> None:
    self._functions = {
      name: _function(getattr(sync_ops, name), spec)
      for name, spec in _SPECS.items()
    }

  def call(self, name: str, *args: int | list[int]) -> Any:
    """What a method returns.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    with tf.device(None):  # not on the worker for which this thread calls
      given = [tf.constant(arg, tf.int64) for arg in args]
      return self._functions[name](*given)

  def try_to_call(self, name: str, *args: int | list[int]) -> None:
    """Likewise; what goes wrong is only logged."""
    try:
      self.call(name, *args)
    except tf.errors.OpError as error:
      logging.warning('The workers do not know what becomes: %s', error)


def _function(call: Callable[..., Any], spec: list[tf.TensorSpec]) -> Any:
  def function(*args: tf.Tensor) -> tf.Tensor | None:
    returned = call(*args)
    return returned if tf.is_tensor(returned) else None

  made = tf.function(function, autograph=False)
  return made.get_concrete_function(*spec)
