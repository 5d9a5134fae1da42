"""Batches that are at hand on a worker, before an execution begins.

They are in a list, which is a tensor that never leaves the worker: an execution
gets one, and returns another with what it has read meanwhile for the next. So
no execution is begun for which there are not enough.
"""

from collections.abc import Callable
import dataclasses
from typing import Any
from typing import ClassVar

import tensorflow as tf

from tfps.variables import step_replicas

_LIST = tf.TensorSpec([], tf.variant)
_NUMBER = tf.TensorSpec([], tf.int64)
_NUMBERS = tf.TensorSpec([None], tf.int64)
_TABLE = tf.TensorSpec([None, None], tf.int64)
_SCALAR = tf.TensorShape([])

# Those that a worker has: a list, and the place of the first that is new.
AT_HAND = (_LIST, _NUMBER)

Given = tuple[Any, Any, Any, Any, Any]


@dataclasses.dataclass(frozen=True)
class Source:
  """Where executions get their batches from; see `execution.Source`.

  Attributes:
    element_spec: the type of a batch.
    add: notes on the ledger how far splits have come.
    ahead: how many batches to read for the next execution, meanwhile.
    width: how many batches a step takes, one for each of its replicas.
  """

  may_be_empty: ClassVar[bool] = True

  element_spec: Any
  add: Callable[[tf.Tensor, tf.Tensor], tf.Operation]
  ahead: int
  width: int

  @property
  def spec(self) -> Any:
    """Of what an execution is given.

    That is an iterator over the rest of a split, the list of batches at hand,
    the place of the first in it that is new, and splits, with how far they have
    come after each number of steps.
    """
    iterator = tf.data.IteratorSpec(self.element_spec)
    return iterator, *AT_HAND, _NUMBERS, _TABLE

  def batches(self, given: Given) -> Any:
    """What the steps need of it: nothing that is read from meanwhile."""
    _, batches, first, *_ = given
    return batches, first

  def after(self, batches: Any, number: tf.Tensor | int) -> '_Rest':
    listed, first = batches
    return _Rest(self.element_spec, listed, first, number * self.width)

  def draw(self, strategy: tf.distribute.Strategy, batches: Any) -> Any:
    return step_replicas.next_batch(strategy, batches, self.width)

  def read_ahead(self, given: Given) -> tuple[tf.Tensor, ...]:
    if not self.ahead:
      return (tf.zeros([0], tf.int64),)
    iterator = given[0]
    return read(iterator, empty(), tf.constant(self.ahead, tf.int64))

  def end(self, given: Given, counted: tf.Tensor) -> list[tf.Operation]:
    *_, splits, values = given
    return [self.add(splits, tf.gather(values, counted))]


class _Rest:
  """The batches of a list from a place on."""

  def __init__(
    self, element_spec: Any, batches: tf.Tensor, first: Any, number: Any = 0
  ) -> None:
    self._spec = tf.OptionalSpec(element_spec)
    self._batches = batches
    self._next = tf.cast(first, tf.int32) + tf.cast(number, tf.int32)

  def __next__(self) -> Any:
    batch = tf.raw_ops.TensorListGetItem(
      input_handle=self._batches,
      index=self._next,
      element_shape=_shape(),
      element_dtype=tf.variant,
    )
    self._next += 1
    batch.set_shape(_SCALAR)
    return tf.nest.pack_sequence_as(
      self._spec, [batch], expand_composites=True
    ).get_value()


def pick(element_spec: Any, batches: tf.Tensor, place: tf.Tensor) -> Any:
  """One batch of a list."""
  return next(_Rest(element_spec, batches, place))


def empty() -> tf.Tensor:
  """A list without batches."""
  return tf.raw_ops.EmptyTensorList(
    element_shape=_shape(), max_num_elements=-1, element_dtype=tf.variant
  )


def read(
  iterator: Any, batches: tf.Tensor, wanted: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
  """Reads so many batches more, if there are; at the end of a split, fewer.

  Returns:
    The list with them, and how many they are and whether the split has ended.
  """

  def go_on(batches: Any, number: Any, ended: Any) -> Any:
    del batches
    return (number < wanted) & ~ended

  def read_one(batches: Any, number: Any, ended: Any) -> Any:
    del ended
    batch = iterator.get_next_as_optional()
    is_there = batch.has_value()
    (variant,) = tf.nest.flatten(batch, expand_composites=True)
    batches = tf.cond(
      is_there,
      lambda: tf.raw_ops.TensorListPushBack(
        input_handle=batches, tensor=variant
      ),
      lambda: batches,
    )
    return batches, number + tf.cast(is_there, tf.int64), ~is_there

  batches, number, ended = tf.while_loop(
    go_on,
    read_one,
    (batches, tf.constant(0, tf.int64), tf.constant(False)),
    parallel_iterations=1,
  )
  return batches, tf.stack([number, tf.cast(ended, tf.int64)])


def _shape() -> tf.Tensor:
  return tf.constant([], tf.int32)
