"""Lists of batches buffered on a worker before an execution starts.

A list is a variant tensor that never leaves the worker: an execution receives
one, and returns another with the batches that it prefetched for the next. So
no execution starts without enough batches.
"""

from collections.abc import Callable
import dataclasses
from typing import Any
from typing import ClassVar

import tensorflow as tf

from tfps.input import sources
from tfps.variables import step_replicas

_LIST = tf.TensorSpec([], tf.variant)
_NUMBER = tf.TensorSpec([], tf.int64)
_NUMBERS = tf.TensorSpec([None], tf.int64)
_TABLE = tf.TensorSpec([None, None], tf.int64)
_SCALAR = tf.TensorShape([])

# A worker's buffer: the list, and the index of the first unused batch in it.
BUFFER_SPEC = (_LIST, _NUMBER)

Inputs = tuple[Any, Any, Any, Any, Any]


@dataclasses.dataclass(frozen=True)
class Source(sources.Source):
  """Source of an execution's batches, which are those of a queue.

  Attributes:
    element_spec: the type of a batch.
    add: records the progress of splits on the ps.
    ahead: how many batches to prefetch for the next execution.
    width: how many batches a step takes, one for each of its replicas.
  """

  may_be_empty: ClassVar[bool] = True

  element_spec: Any
  add: Callable[[tf.Tensor, tf.Tensor], tf.Operation]
  ahead: int
  width: int

  @property
  def spec(self) -> Any:
    """The type of an execution's inputs.

    These are an iterator over the rest of a split, the list of buffered
    batches, the index of the first unused one, the indices of splits, and a
    table with their progress after each number of steps.
    """
    iterator = tf.data.IteratorSpec(self.element_spec)
    return iterator, *BUFFER_SPEC, _NUMBERS, _TABLE

  def batches(self, given: Inputs) -> Any:
    """Returns the inputs that steps read, without the iterator."""
    _, batches, first, *_ = given
    return batches, first

  def after(self, batches: Any, number: tf.Tensor | int) -> '_Rest':
    listed, first = batches
    return _Rest(self.element_spec, listed, first, number * self.width)

  def draw(self, strategy: tf.distribute.Strategy, batches: Any) -> Any:
    return step_replicas.next_batch(strategy, batches, self.width)

  def read_ahead(self, given: Inputs) -> tuple[tf.Tensor, ...]:
    if not self.ahead:
      return (tf.zeros([0], tf.int64),)
    iterator = given[0]
    return read(iterator, empty(), tf.constant(self.ahead, tf.int64))

  def end(self, given: Inputs, counted: tf.Tensor) -> list[tf.Operation]:
    *_, splits, values = given
    return [self.add(splits, tf.gather(values, counted))]


class _Rest:
  """Iterates over the batches of a list from an index on."""

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


def pick(element_spec: Any, batches: tf.Tensor, index: tf.Tensor) -> Any:
  """Returns one batch of a list.

  Args:
    element_spec: the type of a batch.
    batches: the list, a variant scalar.
    index: the batch's index in the list, an int64 scalar.
  """
  return next(_Rest(element_spec, batches, index))


def empty() -> tf.Tensor:
  """Returns a list without batches."""
  return tf.raw_ops.EmptyTensorList(
    element_shape=_shape(), max_num_elements=-1, element_dtype=tf.variant
  )


def read(
  iterator: Any, batches: tf.Tensor, wanted: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
  """Appends batches of a split to a list.

  Args:
    iterator: over the rest of the split.
    batches: the list, a variant scalar.
    wanted: how many batches to append at most, an int64 scalar; fewer are
      appended at the end of the split.

  Returns:
    The longer list, and an int64 tensor of shape [2]: how many batches were
    appended, and whether the split has ended.
  """

  def wants_more(batches: Any, number: Any, ended: Any) -> Any:
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
    wants_more,
    read_one,
    (batches, tf.constant(0, tf.int64), tf.constant(False)),
    parallel_iterations=1,
  )
  return batches, tf.stack([number, tf.cast(ended, tf.int64)])


def _shape() -> tf.Tensor:
  return tf.constant([], tf.int32)
