"""Numbers of rows that are at hand when a function is traced."""

import tensorflow as tf


def note(tensor: tf.Tensor, count: tf.Tensor) -> None:
  """Notes how many rows a tensor has, so that it need not be found out.

  Args:
    tensor: a tensor of a function that is being traced.
    count: its first dimension, an int64 scalar on the same device.
  """
  if tf.is_symbolic_tensor(tensor):
    tensor._tfps_num_rows = count


def of(tensor: tf.Tensor) -> tf.Tensor | None:
  """Returns the number of rows that was noted, or None."""
  count: tf.Tensor | None = getattr(tensor, '_tfps_num_rows', None)
  return count
