"""What Keras' trainer iterates over under our strategies."""

from collections.abc import Callable
from collections.abc import Iterator
import functools
import inspect
import itertools
from typing import Any

import keras
import tensorflow as tf

from tfps._compat import keras_data
from tfps.input import iterators as iterators_lib
from tfps.input import per_worker
from tfps.variables import step_replicas


class Batches:
  """The batches of a data adapter, each of which is handed out once.

  Keras takes the first batch to build a model by, and begins anew. `put_back`
  makes it begin with what it has looked at, so that a generator loses nothing.

  Args:
    dataset: a `tf.data.Dataset` of batches.
  """

  def __init__(self, dataset: tf.data.Dataset) -> None:
    self._dataset = dataset
    self._looked_at: Taking | None = None
    self._current: Taking | None = None

  def __iter__(self) -> Iterator[Any]:
    self._current = self._looked_at or Taking(iterators_lib.over(self._dataset))
    self._looked_at = None
    return self._current

  def put_back(self) -> None:
    """Has the next iteration go on from before the batch just taken."""
    if self._current is not None:
      self._looked_at = self._current.rewound()


class Taking:
  """An iterator that remembers its first batch."""

  def __init__(self, batches: Iterator[Any], *first: Any) -> None:
    self._batches = batches
    self._first = list(first)
    self._taken: list[Any] = []
    self._num_taken = 0

  def __iter__(self) -> 'Taking':
    return self

  def __next__(self) -> Any:
    batch = self._first.pop() if self._first else next(self._batches)
    self._num_taken += 1
    self._taken = [batch] if self._num_taken == 1 else []
    return batch

  def rewound(self) -> 'Taking | None':
    """The same, before its only batch so far; None if there is no such."""
    return Taking(self._batches, *self._taken) if self._taken else None


def is_dataset_fn(x: Any) -> bool:
  """Whether it is a function of a `tf.distribute.InputContext`."""
  return (
    inspect.isfunction(x)
    or inspect.ismethod(x)
    or isinstance(x, functools.partial)
  )


class PerWorkerAdapter(keras_data.DataAdapter):
  """A dataset for each worker, made there; stands for Keras' data adapters.

  Args:
    dataset_fn: makes a worker's dataset, given its `InputContext`.
    make: gets who executes steps, and the function, and makes the iterators.
  """

  def __init__(
    self,
    dataset_fn: per_worker.DatasetFn,
    make: Callable[[Any, per_worker.DatasetFn], Any] | None = None,
  ) -> None:
    self._dataset_fn = dataset_fn
    self._make = make or (lambda *args: per_worker.iterators(*args)[0])
    self._batches: PerWorkerBatches | None = None

  def get_tf_dataset(self) -> tf.data.Dataset:
    """As if there were one worker: what a model can be built by."""
    return self._dataset_fn(tf.distribute.InputContext(num_input_pipelines=1))

  def __iter__(self) -> 'PerWorkerBatches':
    if self._batches is None:
      self._batches = PerWorkerBatches(self)
    return self._batches

  def iterators(self, executor: Any) -> Any:
    """An iterator on each worker."""
    return self._make(executor, self._dataset_fn)

  @property
  def num_batches(self) -> None:
    return None


class PerWorkerBatches:
  """Batches that workers take from datasets of their own."""

  def __init__(self, adapter: PerWorkerAdapter) -> None:
    self._adapter = adapter
    self._iterators: Any = None

  def __iter__(self) -> 'PerWorkerBatches':
    return self

  def __next__(self) -> Any:
    return next(iter(self._adapter.get_tf_dataset()))

  def iterators(self, executor: Any) -> Any:
    """The workers' iterators, which go on where the last epoch ended."""
    if self._iterators is None:
      self._iterators = self._adapter.iterators(executor)
    return self._iterators


def take(
  batches: Iterator[Any],
  number: int,
  surviving: Callable[[Callable[[], Any]], Any],
) -> list[Any]:
  """Up to so many batches, as tensors.

  Args:
    batches: taken from.
    number: how many at most.
    surviving: calls a function, again if need be: TensorFlow may report the
      loss of a ps to whatever this thread does next.

  Raises:
    StopIteration: there is none left.
  """
  taken = []
  for _ in range(number):
    try:
      batch = surviving(lambda: next(batches))
    except (StopIteration, tf.errors.OutOfRangeError):
      break
    taken.append(keras.tree.map_structure(_as_tensor, batch))
  if not taken:
    raise StopIteration
  return taken


def _as_tensor(leaf: Any) -> Any:
  """What a function takes: absent inputs are None, arrays are tensors."""
  if isinstance(leaf, tf.experimental.Optional):
    return leaf.get_value() if leaf.has_value() else None
  is_composite = isinstance(leaf, tf.__internal__.CompositeTensor)
  return leaf if leaf is None or is_composite else tf.convert_to_tensor(leaf)


def divide(batch: Any, strategy: tf.distribute.Strategy) -> Any:
  """The batch, or for several replicas of a step a tuple of their pieces.

  A batch with fewer examples than there are replicas is for as many.

  Raises:
    ValueError: parts of the batch have different numbers of examples.
  """
  number = len(step_replicas.of(strategy).devices)
  if number == 1:
    return batch
  leaves = [leaf for leaf in keras.tree.flatten(batch) if leaf is not None]
  rows = {int(_num_rows(leaf)) for leaf in leaves if leaf.shape.rank != 0}
  if len(rows) > 1:
    raise ValueError(
      f'A batch has parts of {sorted(rows)} examples, and cannot be divided '
      f'among {number} replicas. Give all parts the same number.'
    )
  size = rows.pop() if rows else 1
  number = max(1, min(number, size))
  ends = [size * i // number for i in range(number + 1)]
  # No list, which would be one of batches.
  return tuple(
    keras.tree.map_structure(
      functools.partial(_rows, first=first, last=last), batch
    )
    for first, last in itertools.pairwise(ends)
  )


def _num_rows(leaf: Any) -> Any:
  if isinstance(leaf, tf.SparseTensor):
    return leaf.dense_shape[0]
  return leaf.nrows() if isinstance(leaf, tf.RaggedTensor) else leaf.shape[0]


def _rows(leaf: Any, *, first: int, last: int) -> Any:
  if leaf is None or leaf.shape.rank == 0:
    return leaf
  if not isinstance(leaf, tf.SparseTensor):
    return leaf[first:last]
  start = tf.one_hot(0, leaf.shape.rank, tf.cast(first, tf.int64))
  size = tf.concat([[last - first], leaf.dense_shape[1:]], axis=0)
  return tf.sparse.slice(leaf, tf.cast(start, tf.int64), size)


def group(
  batches: list[Any], size: int, *, singly: bool = True
) -> Iterator[list[Any]]:
  """Groups of `size` batches of equal shapes, and smaller ones between.

  Args:
    batches: to be divided, in their order.
    size: of a group.
    singly: whether batches that make no full group come one by one, so that
      functions need to be traced for these two sizes only.
  """
  for _, run in itertools.groupby(batches, _kinds):
    equal = list(run)
    can_stack = all(_kinds(equal[0]))
    while len(equal) >= size and can_stack:
      yield equal[:size]
      equal = equal[size:]
    if equal and can_stack and not singly:
      yield equal
    else:
      yield from ([batch] for batch in equal)


def stack(batches: list[Any]) -> Any:
  """Batches of equal shapes as one, to travel in one piece.

  A single batch stays as it is, in a list.
  """
  if len(batches) == 1:
    return batches
  flat = [keras.tree.flatten(batch) for batch in batches]
  stacked = [_stack(leaves) for leaves in zip(*flat, strict=True)]
  return keras.tree.pack_sequence_as(batches[0], stacked)


def unstack(stacked: Any, number: int) -> list[Any]:
  """The batches that `stack` made one, in a graph."""
  pieces = [
    [None] * number if leaf is None else tf.unstack(leaf, number)
    for leaf in keras.tree.flatten(stacked)
  ]
  return [
    keras.tree.pack_sequence_as(stacked, list(leaves))
    for leaves in zip(*pieces, strict=True)
  ]


def _kinds(batch: Any) -> tuple[Any, ...]:
  return tuple(map(_kind, keras.tree.flatten(batch)))


def _kind(leaf: Any) -> Any:
  """What must be equal for leaves to be stacked; None if they cannot be."""
  if leaf is None:
    return 'absent'
  return (leaf.dtype, *leaf.shape) if isinstance(leaf, tf.Tensor) else None


def _stack(leaves: tuple[Any, ...]) -> Any:
  return None if leaves[0] is None else tf.stack(leaves)
