"""What the executions of one graph over all workers get of a queue."""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
from typing import Any
from typing import ClassVar

import tensorflow as tf

from tfps import _replicas
from tfps.input import _batches

_NUMBERS = tf.TensorSpec([None], tf.int64)
_TABLE = tf.TensorSpec([None, None], tf.int64)


@dataclasses.dataclass(frozen=True)
class Lists:
  """The batches at hand on each worker, for full steps; see `_batches`.

  Attributes:
    own: of one worker.
    num_workers: how many there are.
  """

  may_be_empty: ClassVar[bool] = True

  own: _batches.Source
  num_workers: int

  @property
  def spec(self) -> Any:
    return [_batches.AT_HAND] * self.num_workers, _NUMBERS, _TABLE

  def batches(self, given: Any) -> Any:
    return given[0]

  def after(self, batches: Any, number: tf.Tensor | int) -> Any:
    return [self.own.after(each, number) for each in batches]

  def draw(self, strategy: tf.distribute.Strategy, batches: Any) -> Any:
    return _replicas.draw(strategy, batches)

  def read_ahead(self, given: Any) -> tuple[tf.Tensor, ...]:
    del given
    return (tf.zeros([0], tf.int64),)

  def end(self, given: Any, counted: tf.Tensor) -> Sequence[tf.Operation]:
    return self.own.end(given, counted)


@dataclasses.dataclass(frozen=True)
class Dealt:
  """A batch for each replica of one step.

  Attributes:
    element_spec: the type of a batch.
    add: notes on the ledger how far splits have come.
    number: of replicas.
  """

  may_be_empty: ClassVar[bool] = True

  element_spec: Any
  add: Callable[[tf.Tensor, tf.Tensor], tf.Operation]
  number: int

  @property
  def spec(self) -> Any:
    return (self.element_spec,) * self.number, _NUMBERS, _TABLE

  def batches(self, given: Any) -> Any:
    return given[0]

  def after(self, batches: Any, number: tf.Tensor | int) -> Any:
    del number  # there is one step
    return batches

  def draw(self, strategy: tf.distribute.Strategy, batches: Any) -> Any:
    return _replicas.dealt(strategy, batches)

  def read_ahead(self, given: Any) -> tuple[tf.Tensor, ...]:
    del given
    return (tf.zeros([0], tf.int64),)

  def end(self, given: Any, counted: tf.Tensor) -> Sequence[tf.Operation]:
    *_, splits, values = given
    return [self.add(splits, tf.gather(values, counted))]
