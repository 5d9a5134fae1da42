"""Rows of variables, read and written on the ps, given their numbers."""

from typing import Any

import tensorflow as tf


def read(variable: Any, rows: Any) -> tf.Tensor:
  """Returns rows of a variable.

  Args:
    variable: of any shape but a scalar's.
    rows: their numbers, integers of any shape.
  """
  return tf.raw_ops.ResourceGather(
    resource=variable.handle, indices=rows, dtype=variable.dtype
  )


def write(variable: Any, rows: Any, values: Any) -> Any:
  """Writes rows of a variable; returns the operation.

  Args:
    variable: as for `read`.
    rows: as for `read`; each at most once.
    values: the rows' new values.
  """
  return tf.raw_ops.ResourceScatterUpdate(
    resource=variable.handle, indices=rows, updates=values
  )


def raise_to(variable: Any, rows: Any, values: Any) -> Any:
  """Raises rows of a variable to values, if less; returns the operation.

  Args:
    variable: as for `read`.
    rows: as for `read`.
    values: of numbers, of the shape of the rows.
  """
  return tf.raw_ops.ResourceScatterMax(
    resource=variable.handle, indices=rows, updates=values
  )
