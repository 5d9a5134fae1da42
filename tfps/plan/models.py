"""The description of a model: its variables and computing time."""

from collections.abc import Sequence
import dataclasses
import math

import numpy as np

from tfps.plan import checks

FLOAT_BYTES = 4


@dataclasses.dataclass(frozen=True)
class Variable:
  """A trainable variable.

  Attributes:
    shape: its dimensions.
    rows: number of distinct rows that a step reads, if it is an embedding
      table; None if a step reads all of the variable.
    dtype: the name of its floating type.

  Raises:
    ValueError: an attribute is invalid.
  """

  shape: tuple[int, ...]
  rows: float | None = None
  dtype: str = 'float32'

  def __post_init__(self) -> None:
    for size in self.shape:
      checks.whole('Variable: a dimension', size, at_least=1)
    if self.rows is not None:
      checks.positive('Variable: rows', self.rows)
      if not self.shape or self.rows > self.shape[0]:
        raise ValueError(
          f'Variable: rows is {self.rows:g}, but the shape is {self.shape}. '
          'Give at most its first dimension.'
        )
    if self.dtype != 'bfloat16':
      checks.floating('Variable: dtype', self.dtype)

  @property
  def size(self) -> int:
    """The number of its values."""
    return math.prod(self.shape)

  @property
  def value_bytes(self) -> int:
    """The bytes of one value."""
    return 2 if self.dtype == 'bfloat16' else np.dtype(self.dtype).itemsize

  @property
  def num_bytes(self) -> int:
    """The number of bytes of its values."""
    return self.size * self.value_bytes


@dataclasses.dataclass(frozen=True)
class Model:
  """A model to train.

  Attributes:
    variables: the variables, in the order in which a step reads them.
    compute_secs: seconds that a worker computes for the forward and backward
      pass of a step.

  Raises:
    ValueError: there are no variables, or the time is negative.
  """

  variables: tuple[Variable, ...]
  compute_secs: float

  def __post_init__(self) -> None:
    if not self.variables:
      raise ValueError('Model: it has no variables. Give one at least.')
    checks.positive('Model: compute_secs', self.compute_secs, or_zero=True)

  @classmethod
  def of_shapes(
    cls, shapes: Sequence[Sequence[int]], compute_secs: float
  ) -> 'Model':
    """Returns a model of float32 variables that steps read as a whole.

    Args:
      shapes: shapes of the variables.
      compute_secs: see `Model`.
    """
    return cls(tuple(Variable(tuple(shape)) for shape in shapes), compute_secs)

  @classmethod
  def of_bytes(
    cls, num_bytes: float, compute_secs: float, *, num_variables: int = 50
  ) -> 'Model':
    """Returns a model of equal float32 variables that steps read as a whole.

    Args:
      num_bytes: total size of the variables.
      compute_secs: see `Model`.
      num_variables: number of variables.
    """
    checks.positive('Model: num_bytes', num_bytes)
    checks.whole('Model: num_variables', num_variables, at_least=1)
    size = max(1, round(num_bytes / FLOAT_BYTES / num_variables))
    return cls.of_shapes([[size]] * num_variables, compute_secs)

  def with_table(
    self, num_rows: int, width: int, rows_per_step: float
  ) -> 'Model':
    """Returns the model with an additional float32 embedding table.

    Args:
      num_rows: number of rows of the table.
      width: number of values per row.
      rows_per_step: number of distinct rows that a step looks up.
    """
    table = Variable((num_rows, width), rows=rows_per_step)
    return dataclasses.replace(self, variables=(table, *self.variables))

  @property
  def num_bytes(self) -> int:
    """The total bytes of all variables."""
    return sum(variable.num_bytes for variable in self.variables)
