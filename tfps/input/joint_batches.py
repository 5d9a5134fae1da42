"""What the executions of one graph over all workers get of a queue."""

import dataclasses
from typing import Any
from typing import ClassVar

import tensorflow as tf

from tfps.input import batch_list
from tfps.variables import step_replicas

_NUMBERS = tf.TensorSpec([None], tf.int64)
_TABLE = tf.TensorSpec([None, None], tf.int64)


@dataclasses.dataclass(frozen=True)
class _OfAll:
  """What is given of all workers first, and then of the ledger.

  Attributes:
    own: of one worker, for which nothing is read ahead.
    number: how many there are of what is given first.
  """

  may_be_empty: ClassVar[bool] = True

  own: batch_list.Source
  number: int

  def batches(self, given: Any) -> Any:
    return given[0]

  def read_ahead(self, given: Any) -> tuple[tf.Tensor, ...]:
    return self.own.read_ahead(given)

  def end(self, given: Any, counted: tf.Tensor) -> list[tf.Operation]:
    return self.own.end(given, counted)


class Lists(_OfAll):
  """The batches at hand on each worker, for full steps; see `_batches`."""

  @property
  def spec(self) -> Any:
    return [batch_list.AT_HAND] * self.number, _NUMBERS, _TABLE

  def after(self, batches: Any, number: tf.Tensor | int) -> Any:
    return [self.own.after(each, number) for each in batches]

  def draw(self, strategy: tf.distribute.Strategy, batches: Any) -> Any:
    return step_replicas.next_batch(strategy, batches)


class Dealt(_OfAll):
  """A batch for each of some replicas of one step."""

  @property
  def spec(self) -> Any:
    return (self.own.element_spec,) * self.number, _NUMBERS, _TABLE

  def after(self, batches: Any, number: tf.Tensor | int) -> Any:
    del number  # there is one step
    return batches

  def draw(self, strategy: tf.distribute.Strategy, batches: Any) -> Any:
    return step_replicas.join_batches(strategy, batches)
