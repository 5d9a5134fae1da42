"""Datasets of the coordinator's workers, one made for each worker."""

from collections.abc import Callable
import functools
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfps._compat import captured_datasets
from tfps._compat import coordinator as compat
from tfps._compat import per_worker
from tfps.input import iterators as iterators_lib

DatasetFn = Callable[[tf.distribute.InputContext], tf.data.Dataset]


class Batches(NamedTuple):
  """Batches of the workers.

  Attributes:
    iterator: an iterator on each worker, to pass to `schedule`.
    spec: the iterators' common type.
  """

  iterator: Any
  spec: Any


def batches(coordinator: Any, dataset_fn: DatasetFn) -> Batches:
  """Makes an iterator on each worker, over that worker's own dataset.

  The function is traced once for each worker, so that `input_pipeline_id` is a
  Python int: it may pick files or shard, and a worker that restarts reads its
  own shard again. A worker that joins later gets one more pipeline; those of
  the others do not change.

  Args:
    coordinator: a `ClusterCoordinator` or our own.
    dataset_fn: makes the dataset of one worker.

  Raises:
    ValueError: the workers' datasets have elements of different types.
  """
  in_sync = coordinator.strategy.num_replicas_in_sync
  num_workers = compat.num_workers(coordinator)
  traced = dict(enumerate(trace(dataset_fn, num_workers, in_sync)))

  def of_worker(index: int, number: int) -> Any:
    if index not in traced:
      context = _context(index, number, in_sync)
      fn = _trace(functools.partial(dataset_fn, context))
      _check(index, fn, traced[0])
      traced[index] = fn
    return traced[index]

  spec = traced[0].structured_outputs.element_spec
  over = functools.partial(
    iterators_lib.over, emptying=iterators_lib.emptying(spec)
  )
  return Batches(*per_worker.iterators(coordinator, of_worker, over))


def trace(
  dataset_fn: DatasetFn, num_workers: int, num_replicas_in_sync: int
) -> list[Any]:
  """Traces the function that makes datasets, once for each worker.

  Args:
    dataset_fn: makes the dataset of one worker.
    num_workers: the number of input pipelines.
    num_replicas_in_sync: the number of replicas of a step.

  Returns:
    By worker, concrete functions that return its dataset.

  Raises:
    ValueError: the workers' datasets have elements of different types.
  """
  with captured_datasets.sent():
    traced = [
      _trace(
        functools.partial(
          dataset_fn, _context(index, num_workers, num_replicas_in_sync)
        )
      )
      for index in range(num_workers)
    ]
  for index, fn in enumerate(traced):
    _check(index, fn, traced[0])
  return traced


def _check(index: int, fn: Any, first: Any) -> None:
  spec, wanted = (each.structured_outputs.element_spec for each in (fn, first))
  if spec != wanted:
    raise ValueError(
      f'dataset_fn: the elements for worker:{index} are {spec}, but those '
      f'for worker:0 are {wanted}. All must be of one type, for example with '
      'batch(..., drop_remainder=True).'
    )


def _context(
  index: int, num_workers: int, num_replicas_in_sync: int
) -> tf.distribute.InputContext:
  return tf.distribute.InputContext(
    num_input_pipelines=num_workers,
    input_pipeline_id=index,
    num_replicas_in_sync=num_replicas_in_sync,
  )


def _trace(dataset_fn: Callable[[], tf.data.Dataset]) -> Any:
  with captured_datasets.sent():
    traced = tf.function(dataset_fn).get_concrete_function()
  if not hasattr(traced.structured_outputs, 'element_spec'):
    raise ValueError(
      f'dataset_fn: returned {traced.structured_outputs!r}, which is not a '
      'tf.data.Dataset. Return one.'
    )
  return traced
