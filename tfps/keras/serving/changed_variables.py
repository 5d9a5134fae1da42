"""Variables of a loaded SavedModel, which are given the rows of deltas."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from tfps.keras.serving import delta_file


def apply(model: Any, parts: Iterable[delta_file.Part]) -> None:
  """Gives the variables of a model the rows of a delta.

  Args:
    model: a loaded base.
    parts: those of the delta.
  """
  for part in parts:
    variable = model.variables[part.variable]
    with tf.device(variable.device):
      _apply(variable, part)


def _apply(variable: Any, part: delta_file.Part) -> None:
  if variable.shape.rank == 0:
    variable.assign(_values(variable, part, []))
    return
  row_shape = variable.shape[1:].as_list()
  row_size = variable.dtype.size * variable.shape[1:].num_elements()
  numbers = part.rows
  if part.row_bytes != row_size:  # all rows are one
    count = part.row_bytes // row_size
    numbers = part.rows[0] + np.arange(count)
  rows = _values(variable, part, [len(numbers), *row_shape])
  num_rows = variable.shape[0]
  if part.num_rows is not None:
    num_rows = part.num_rows
    _resize(variable, num_rows, numbers, rows)
  if len(numbers) == num_rows:
    # Unlike a scatter, it does not have later reads copy the variable.
    variable.assign(tf.gather(rows, np.argsort(numbers)))
  elif len(numbers):
    tf.raw_ops.ResourceScatterUpdate(
      resource=variable.handle, indices=numbers, updates=rows
    )


def _values(variable: Any, part: delta_file.Part, shape: list[int]) -> Any:
  data = b''.join(each.tobytes() for each in part.values)
  values = np.frombuffer(data, np.dtype(variable.dtype.as_numpy_dtype))
  return tf.constant(values.reshape(shape), variable.dtype)


def _resize(
  variable: Any, num_rows: int, numbers: np.ndarray, rows: tf.Tensor
) -> None:
  """Gives a variable its number of rows; new ones are like its first."""
  value = variable.read_value()
  missing = num_rows - len(value)
  if missing < 0:
    variable.assign(value[:num_rows])
  elif missing > 0:
    at = np.flatnonzero(numbers == 0)
    first = rows[at[0]] if len(at) else value[0]
    new = tf.repeat(first[tf.newaxis], missing, axis=0)
    variable.assign(tf.concat([value, new], axis=0))
