"""Functions on another device, called by one message each way.

TensorFlow merges the functions that a function calls into its graph, and
divides the graph by devices. Each tensor between two devices is a message of
its own then, and so is each control dependency; a loop or a branch on a ps
exchanges messages with the worker in every iteration.
"""

from collections.abc import Callable
from collections.abc import Sequence
import functools
from typing import Any

import tensorflow as tf

from tfps._compat import replicated_writes


class DeviceFunction:
  """Function of numbers that is executed on a device, within other functions.

  It is traced once, however often functions that are being traced call it.

  Args:
    variable: a variable on the device. Where it has a replica elsewhere, which
      gets what the function writes, calls are merged as usual.
    function: takes int64 scalars, and returns int64 and bool tensors of known
      shapes; captures no other tensors than handles of variables on the device.
    *args: arguments of the function before the scalars, of any type.
  """

  def __init__(
    self,
    variable: Any,
    function: Callable[..., Sequence[tf.Tensor]],
    *args: object,
  ) -> None:
    self._variable = variable
    self._device = variable.device
    self._function = functools.partial(function, *args)
    self._returned: list[tf.TensorSpec] = []

  def __call__(self, *numbers: tf.Tensor) -> list[tf.Tensor]:
    """Calls the function.

    Args:
      *numbers: its arguments, scalars of type int64 or bool.

    Returns:
      What it returns, on the current device.
    """
    vector = tf.stack([tf.cast(number, tf.int64) for number in numbers])
    with tf.device(self._device):
      packed = self._packed(vector)
    sizes = [spec.shape.num_elements() for spec in self._returned]
    parts = tf.split(tf.identity(packed), sizes)
    return [
      tf.reshape(tf.cast(part, spec.dtype), spec.shape)
      for part, spec in zip(parts, self._returned, strict=True)
    ]

  @functools.cached_property
  def _packed(self) -> Any:
    is_whole = replicated_writes.replica_of(self._variable) is None
    return tf.function(
      self._pack,
      autograph=False,
      experimental_attributes={'_noinline': True} if is_whole else None,
    )

  def _pack(self, vector: tf.Tensor) -> tf.Tensor:
    """Calls the function with the elements of a vector; returns a vector."""
    with tf.device(self._device):
      returned = self._function(*tf.unstack(vector))
      self._returned = [tf.TensorSpec(t.shape, t.dtype) for t in returned]
      flat = [tf.reshape(tf.cast(t, tf.int64), [-1]) for t in returned]
      return tf.concat(flat, axis=0)
