"""Calls of functions on another device, each in one message there and back.

TensorFlow merges the functions that a function calls into its graph, and
divides the graph by devices. Each tensor between two devices is a message of
its own then, and so is each control dependency; a loop or a branch on a ps
exchanges messages with the worker in every iteration.
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def call(
  device: str,
  function: Callable[..., Sequence[tf.Tensor]],
  *numbers: tf.Tensor,
) -> list[tf.Tensor]:
  """Calls a function on a device, within a function that is being traced.

  Args:
    device: the device, on which all operations of the function are.
    function: returns int64 and bool tensors of known shapes; captures no other
      tensors than handles of variables on the device.
    *numbers: its arguments, scalars of type int64 or bool.

  Returns:
    What the function returns, on the current device.
  """
  types = [number.dtype for number in numbers]
  found: list[tf.TensorSpec] = []

  @tf.function(autograph=False, experimental_attributes={'_noinline': True})
  def packed(vector: tf.Tensor) -> tf.Tensor:
    with tf.device(device):
      given = [
        tf.cast(number, dtype)
        for number, dtype in zip(tf.unstack(vector), types, strict=True)
      ]
      returned = function(*given)
      found.extend(tf.TensorSpec(t.shape, t.dtype) for t in returned)
      flat = [tf.reshape(tf.cast(t, tf.int64), [-1]) for t in returned]
      return tf.concat(flat, axis=0)

  vector = tf.stack([tf.cast(number, tf.int64) for number in numbers])
  with tf.device(device):
    result = packed(vector)
  result = tf.identity(result)
  sizes = [spec.shape.num_elements() for spec in found]
  return [
    tf.reshape(tf.cast(part, spec.dtype), spec.shape)
    for part, spec in zip(tf.split(result, sizes), found, strict=True)
  ]
