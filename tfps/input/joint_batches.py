"""Batches of a queue for executions of one graph over all workers."""

import dataclasses
from typing import Any
from typing import ClassVar

import tensorflow as tf

from tfps.input import batch_list
from tfps.input import sources
from tfps.variables import step_replicas

_NUMBERS = tf.TensorSpec([None], tf.int64)
_TABLE = tf.TensorSpec([None, None], tf.int64)


@dataclasses.dataclass(frozen=True)
class _JointSource(sources.Source):
  """Source whose inputs are the batches of all workers, and split progress.

  Attributes:
    own: the source of one worker, without prefetching.
    number: how many buffers or batches the inputs contain.
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


class Lists(_JointSource):
  """Source of full steps: the buffer of each worker; see `batch_list`."""

  @property
  def spec(self) -> Any:
    return [batch_list.BUFFER_SPEC] * self.number, _NUMBERS, _TABLE

  def after(self, batches: Any, number: tf.Tensor | int) -> Any:
    return [self.own.after(each, number) for each in batches]

  def draw(self, strategy: tf.distribute.Strategy, batches: Any) -> Any:
    return step_replicas.next_batch(strategy, batches)


class Dealt(_JointSource):
  """Source of one step over some replicas: a batch for each of them."""

  @property
  def spec(self) -> Any:
    return (self.own.element_spec,) * self.number, _NUMBERS, _TABLE

  def after(self, batches: Any, number: tf.Tensor | int) -> Any:
    del number  # there is one step
    return batches

  def draw(self, strategy: tf.distribute.Strategy, batches: Any) -> Any:
    return step_replicas.join_batches(strategy, batches)
