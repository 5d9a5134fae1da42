"""Data adapters for Keras' trainer, and iterators over their batches."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
import functools
import inspect
from typing import Any

import tensorflow as tf

from tfps._compat import keras_data
from tfps.input import iterators as iterators_lib
from tfps.input import per_worker
from tfps.keras import batch_structures
from tfps.keras import data_ends

Surviving = Callable[[Callable[[], Any]], Any]


def once(call: Callable[[], Any]) -> Any:
  """Calls a function once, where there is no loss to survive."""
  return call()


class Batches:
  """Batches of a dataset, of which building a model consumes none.

  Keras takes the first batch to build a model, and then iterates again. After
  `put_back`, that begins with this batch, so that generators lose none.

  Args:
    dataset: the batches.
    surviving: as of `take`, for the first batch.
  """

  def __init__(self, dataset: tf.data.Dataset, surviving: Surviving) -> None:
    self._dataset = dataset
    self._surviving = surviving
    self._kept: Taking | None = None
    self._current: Taking | None = None

  def __iter__(self) -> Iterator[Any]:
    if self._kept is None:
      batches = iterators_lib.over(self._dataset)
      self._current = Taking(batches, self._dataset, surviving=self._surviving)
    else:
      self._current = self._kept
    self._kept = None
    return self._current

  def put_back(self) -> None:
    """Makes the next iteration begin with the batch that was taken."""
    if self._current is not None:
      self._kept = self._current.rewound()


class Taking:
  """An iterator that remembers its first batch.

  Args:
    batches: the iterator.
    dataset: over which it iterates.
    *first: a batch that comes first, if there is one.
    surviving: as of `take`, for the first batch.
  """

  def __init__(
    self,
    batches: Iterator[Any],
    dataset: tf.data.Dataset,
    *first: Any,
    surviving: Surviving = once,
  ) -> None:
    self.dataset = dataset
    self._batches = batches
    self._surviving = surviving
    self._first = list(first)
    self._taken: list[Any] = []
    self._num_taken = 0

  def __iter__(self) -> 'Taking':
    return self

  def __next__(self) -> Any:
    if self._first:
      batch = self._first.pop()
    elif self._num_taken:
      batch = next(self._batches)
    else:  # Keras takes it, to build the model
      batch = self._surviving(lambda: next(self._batches))
    self._num_taken += 1
    self._taken = [batch] if self._num_taken == 1 else []
    return batch

  def rewound(self) -> 'Taking | None':
    """Returns an iterator from the first batch on, if only that was taken."""
    if not self._taken:
      return None
    return Taking(
      self._batches, self.dataset, *self._taken, surviving=self._surviving
    )


def is_dataset_fn(x: Any) -> bool:
  """Returns whether an input is a function of an `InputContext`."""
  return (
    inspect.isfunction(x)
    or inspect.ismethod(x)
    or isinstance(x, functools.partial)
  )


def with_weights(
  dataset_fn: per_worker.DatasetFn, beside: Mapping[str, Any]
) -> per_worker.DatasetFn:
  """Returns a function of datasets that have the weights of their classes.

  Args:
    dataset_fn: makes datasets of inputs and targets.
    beside: the arguments of `fit` beside `x`: 'y', 'sample_weight' and
      'class_weight', as far as they are given.

  Raises:
    ValueError: targets or weights of examples are given, which belong into the
      dataset.
  """
  for name in ('y', 'sample_weight'):
    if beside.get(name) is not None:
      raise ValueError(
        f'{name}: given beside a function of an InputContext. Return it from '
        'there, as part of the dataset: (x, y) or (x, y, sample_weight).'
      )
  class_weight = beside.get('class_weight')
  if class_weight is None:
    return dataset_fn

  def weighted(context: tf.distribute.InputContext) -> tf.data.Dataset:
    return dataset_fn(context).map(
      keras_data.make_class_weight_fn(class_weight)
    )

  return weighted


class PerWorkerAdapter(keras_data.DataAdapter):
  """Data adapter of a dataset for each worker, which is made there.

  Args:
    dataset_fn: makes a worker's dataset from its `InputContext`.
    make: makes the batches, which have an `iterator`, from an executor and
      `dataset_fn`; by default with an iterator on each worker.
  """

  def __init__(
    self,
    dataset_fn: per_worker.DatasetFn,
    make: Callable[[Any, per_worker.DatasetFn], Any] | None = None,
  ) -> None:
    self._dataset_fn = dataset_fn
    self._make = make or per_worker.batches

  def get_tf_dataset(self) -> tf.data.Dataset:
    """Returns the dataset of a single worker."""
    return self._dataset_fn(tf.distribute.InputContext(num_input_pipelines=1))

  def __iter__(self) -> 'PerWorkerBatches':
    return PerWorkerBatches(self)

  def make(self, executor: Any) -> Any:
    """Makes the workers' batches."""
    return self._make(executor, self._dataset_fn)

  @property
  def num_batches(self) -> None:
    return None


class PerWorkerBatches:
  """Batches that each worker takes from its own dataset.

  As an iterator it gives this process those of a single worker, by which a
  model is built, and of which `predict` keeps the order.

  Attributes:
    ends: which of the datasets have ended.
  """

  def __init__(self, adapter: PerWorkerAdapter) -> None:
    self.ends = data_ends.DataEnds()
    self._adapter = adapter
    self._made: Any = None
    self._alone: Iterator[Any] | None = None

  def __iter__(self) -> 'PerWorkerBatches':
    return self

  def __next__(self) -> Any:
    if self._alone is None:
      self._alone = iterators_lib.over(self._adapter.get_tf_dataset())
    return next(self._alone)

  def made(self, executor: Any) -> Any:
    """Returns `per_worker.Batches`, which continue over all epochs."""
    if self._made is None:
      self._made = self._adapter.make(executor)
    return self._made

  def end(self) -> None:
    """Lets the next epoch begin with new iterators."""
    self._made = None
    self.ends = data_ends.DataEnds()


def take(
  batches: Iterator[Any],
  number: int,
  surviving: Surviving,
) -> list[Any]:
  """Takes batches from an iterator, and converts them to tensors.

  Args:
    batches: the iterator.
    number: how many batches to take at most.
    surviving: calls a function, and again after the loss of a ps, which
      TensorFlow may report to the next call of this thread.

  Returns:
    The batches, at least one.

  Raises:
    StopIteration: there are no more batches.
  """
  taken = []
  for _ in range(number):
    try:
      batch = surviving(lambda: next(batches))
    except (StopIteration, tf.errors.OutOfRangeError):
      break
    taken.append(batch_structures.as_tensors(batch))
  if not taken:
    raise StopIteration
  return taken
