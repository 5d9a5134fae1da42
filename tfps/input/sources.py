"""Sources of the batches of an execution, in a function being traced."""

from collections.abc import Sequence
import dataclasses
from typing import Any
from typing import ClassVar
from typing import Protocol

import tensorflow as tf

from tfps.variables import step_replicas


class Source(Protocol):
  """Source of an execution's batches.

  Attributes:
    may_be_empty: whether a worker may have no batches while others have some.
  """

  may_be_empty: ClassVar[bool]

  @property
  def spec(self) -> Any:
    """The type of the function's input `given`."""

  def batches(self, given: Any) -> Any:
    """Returns the part of the function's input that the steps need."""

  def after(self, batches: Any, number: tf.Tensor | int) -> Any:
    """Returns the iterator over the batches after some steps.

    Args:
      batches: the result of `batches`.
      number: how many steps have been done before, an int or scalar integer.
    """

  def draw(self, strategy: tf.distribute.Strategy, batches: Any) -> Any:
    """Returns the batch of a step, or one for each of its replicas.

    Args:
      strategy: runs the step.
      batches: the result of `after`.
    """

  def read_ahead(self, given: Any) -> tuple[tf.Tensor, ...]:
    """Prefetches batches.

    Args:
      given: the function's input.

    Returns:
      Further results of the function, if any; the last one is a vector, which
      is appended to the vector of metrics and bytes.
    """

  def end(self, given: Any, counted: tf.Tensor) -> Sequence[tf.Operation]:
    """Returns operations to execute after the steps.

    Args:
      given: the function's input.
      counted: how many steps count, a scalar integer.
    """


@dataclasses.dataclass(frozen=True)
class Iterated(Source):
  """Source that is an iterator that does not end, or one for each worker.

  Attributes:
    iterators: the type of the iterator or iterators.
  """

  may_be_empty: ClassVar[bool] = False

  iterators: Any

  @property
  def spec(self) -> Any:
    return self.iterators

  def batches(self, given: Any) -> Any:
    return given

  def after(self, batches: Any, number: tf.Tensor | int) -> Any:
    del number  # iterators advance by themselves
    return batches

  def draw(self, strategy: tf.distribute.Strategy, batches: Any) -> Any:
    return step_replicas.next_batch(strategy, batches)

  def read_ahead(self, given: Any) -> tuple[tf.Tensor, ...]:
    del given  # iterators prefetch by themselves
    return ()

  def end(self, given: Any, counted: tf.Tensor) -> Sequence[tf.Operation]:
    del given, counted
    return ()
