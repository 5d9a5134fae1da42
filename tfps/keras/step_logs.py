"""Values that a step of a Keras model returns, by name, in an execution."""

from collections.abc import Callable
import dataclasses
import math
from typing import Any

import keras
import tensorflow as tf

from tfps._compat import execution_variables
from tfps.variables import step_replicas

# Types whose values a double represents exactly.
_IN_DOUBLES = frozenset(
  (
    *(tf.bfloat16, tf.float16, tf.float32, tf.float64, tf.bool),
    *(tf.int8, tf.int16, tf.int32, tf.uint8, tf.uint16, tf.uint32),
  )
)


@dataclasses.dataclass(frozen=True)
class Log:
  """A named value that a step returns.

  Attributes:
    name: its name.
    dtype: its type.
    shape: its shape; None if it is not packed into an execution's vector.
  """

  name: str
  dtype: tf.DType
  shape: list[int] | None

  @classmethod
  def of(cls, name: str, value: tf.Tensor) -> 'Log':
    """Returns the log of a value that a step returns."""
    fits = value.dtype in _IN_DOUBLES and value.shape.is_fully_defined()
    return cls(name, value.dtype, value.shape.as_list() if fits else None)

  @property
  def size(self) -> int:
    """The number of its elements in an execution's vector."""
    return 0 if self.shape is None else math.prod(self.shape)


class Logs:
  """Values that the last step of a function returns, by name.

  Args:
    strategy: runs the steps.

  Attributes:
    logs: the types of the values.
  """

  def __init__(self, strategy: tf.distribute.Strategy) -> None:
    self.logs: list[Log] = []
    self._strategy = strategy
    self._graph = tf.compat.v1.get_default_graph()
    self._read: Callable[[], list[tf.Tensor]] = list

  def keep(self, logs: Any) -> None:
    """Keeps the values of a step in place of those of the one before."""
    by_name: dict[str, Any] = {}
    for name, value in (logs or {}).items():
      by_name.update(value if isinstance(value, dict) else {name: value})
    values = [
      tf.convert_to_tensor(
        keras.ops.convert_to_tensor(
          step_replicas.merge_scalars(self._strategy, value)
        )
      )
      for value in by_name.values()
    ]
    self.logs = [Log.of(*log) for log in zip(by_name, values, strict=True)]
    logged = list(zip(self.logs, values, strict=True))
    flat = [
      tf.reshape(tf.cast(value, tf.float64), [-1])
      for log, value in logged
      if log.shape is not None
    ]
    packed = tf.concat(flat, axis=0) if flat else tf.zeros([0], tf.float64)
    others = [value for log, value in logged if log.shape is None]
    self._read = execution_variables.kept([packed, *others], self._graph)

  def read(self) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Returns the values as one vector, and those that it cannot have."""
    packed, *others = self._read()
    return packed, others
