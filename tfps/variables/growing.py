"""Variables whose first dimension grows while they are used.

Their static shape leaves the number of rows open. A variable grows by having a
longer value assigned on its own device, under the lock of that device.
"""

from collections.abc import Iterator
import contextlib
import contextvars
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfps._compat import handles
from tfps._compat import open_shapes

_MAKING: contextvars.ContextVar['Place | None'] = contextvars.ContextVar(
  'tfps_growing', default=None
)

# A variable gets more rows than it needs: as many again while these have few
# bytes, so that the heap gets few holes, and then one part in so many, so that
# little memory is unused.
_FEW_BYTES = 16 << 20
_SPARE_PART = 8


class Place(NamedTuple):
  """Where variables are made, and how.

  Attributes:
    number: number of the ps, modulo how many there are.
    grows: whether their numbers of rows are left open.
  """

  number: int
  grows: bool

  def opened(self, variable: Any) -> Any:
    """Returns a variable that was made, as it is to be."""
    return opened(variable) if self.grows else variable


@contextlib.contextmanager
def making(number: int, *, grows: bool = True) -> Iterator[None]:
  """Returns a context in which variables are made on one ps, without shards.

  Args:
    number: number of the ps, modulo how many there are; without ps it has no
      effect.
    grows: whether the variables grow.
  """
  place = Place(number, grows)

  def create(next_creator: Any, **kwargs: Any) -> Any:
    return place.opened(next_creator(**kwargs))

  token = _MAKING.set(place)
  try:
    with tf.variable_creator_scope(create):
      yield
  finally:
    _MAKING.reset(token)


def place() -> Place | None:
  """Returns where the innermost `making` makes variables; None outside."""
  return _MAKING.get()


def grows(variable: Any) -> bool:
  """Returns whether a variable's number of rows is open."""
  return open_shapes.has_open_rows(variable)


def opened(variable: Any) -> Any:
  """Returns a variable after leaving its number of rows open."""
  open_shapes.open_rows(handles.inner(variable))
  return variable


def fit(variable: Any, needed: tf.Tensor, *, has_spare: bool = True) -> Any:
  """Lets a variable grow if it has too few rows.

  Runs within a `ps_lock.Job` of the variable's device. New rows are like the
  variable's first row.

  Args:
    variable: the variable, with at least one row.
    needed: int64 scalar, how many rows it is to have at least.
    has_spare: whether it gets more, so that it does not grow again soon.

  Returns:
    A tensor, after which it has: whether it has grown.
  """

  def grow() -> tf.Tensor:
    value = tf.raw_ops.ReadVariableOp(
      resource=variable.handle, dtype=variable.dtype
    )
    spare = _spare(variable, needed) if has_spare else 0
    added = needed + spare - present
    rest = tf.ones([variable.shape.rank - 1], tf.int64)
    new = tf.tile(value[:1], tf.concat([added[tf.newaxis], rest], axis=0))
    written = tf.raw_ops.AssignVariableOp(
      resource=variable.handle, value=tf.concat([value, new], axis=0)
    )
    with tf.control_dependencies([written]):
      return tf.constant(True)

  present = open_shapes.num_rows(variable)
  return tf.cond(present < needed, grow, lambda: tf.constant(False))


def _spare(variable: Any, needed: tf.Tensor) -> tf.Tensor:
  """Returns how many rows more than needed a variable is to get."""
  row = variable.dtype.size * variable.shape[1:].num_elements()
  return tf.maximum(
    needed // _SPARE_PART, tf.minimum(needed, _FEW_BYTES // row)
  )
