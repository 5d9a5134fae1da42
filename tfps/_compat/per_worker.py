"""Resources that exist once per worker of a coordinator.

TensorFlow makes them for the workers that exist at that time. For a worker that
joins later they are made like those of worker 0, on first use.
"""

from collections.abc import Callable
from collections.abc import Sequence
import functools
import threading
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import input_lib
from tensorflow.python.distribute.coordinator import values

_adding = threading.Lock()


def add_missing(closure: Any, workers: Sequence[Any]) -> bool:
  """Schedules the creation of per-worker resources that a closure lacks.

  Closures of one worker, such as these, are executed before all others.

  Args:
    closure: to be executed.
    workers: those of the coordinator.

  Returns:
    Whether any were missing.
  """
  given = tf.nest.flatten((closure._args, closure._kwargs))
  wanted = [
    value
    for value in given
    if isinstance(value, values.PerWorkerValues)
    and len(value._values) < len(workers)
  ]
  for value in wanted:
    with _adding:
      for worker in workers[len(value._values) :]:
        value._values = (*value._values, _like(value._values[0], worker))
  return bool(wanted)


def iterators(
  coordinator: Any,
  dataset_fn: Callable[[int, int], Any],
  over: Callable[[tf.data.Dataset], Any],
) -> tuple[Any, Any]:
  """Makes an iterator on each worker over that worker's own endless dataset.

  `create_per_worker_dataset` calls one function on all workers, which then can
  know its worker only through a tensor.

  Args:
    coordinator: a `ClusterCoordinator`.
    dataset_fn: gets a worker's index and the number of workers; returns a
      concrete function that returns the worker's dataset. All have one element
      type. They restart when the loss of a ps has interrupted steps: TensorFlow
      may leave an iterator near its end then, and a step without a batch may
      make some of its updates nevertheless.
    over: makes an iterator over a dataset.

  Returns:
    What to pass to `schedule`, and the type of the iterators.
  """
  strategy = coordinator.strategy
  workers = coordinator._cluster.workers

  def make_on(worker: Any) -> Any:
    fn = dataset_fn(worker.worker_index, len(workers))
    # Made again by the same function when a lost worker has returned.
    iterator = worker.create_resource(functools.partial(_iterate, over, fn))
    iterator._never_ends = True
    iterator._type_spec = input_lib.get_iterator_spec_from_dataset(
      strategy, fn.structured_outputs
    )
    iterator._make_on = make_on  # where a worker comes later
    return iterator

  made = [make_on(worker) for worker in list(workers)]
  return values.PerWorkerDistributedIterator(made), made[0]._type_spec


def _iterate(
  over: Callable[[tf.data.Dataset], Any],
  dataset_fn: Callable[[], tf.data.Dataset],
) -> Any:
  return over(dataset_fn())


def _like(resource: Any, worker: Any) -> Any:
  """Makes a resource on a worker that is like another worker's."""
  make_on = getattr(resource, '_make_on', None)
  if make_on is not None:
    return make_on(worker)
  closure = resource._closure
  made = worker.create_resource(
    closure._function, args=closure._args, kwargs=closure._kwargs
  )
  made._type_spec = resource._type_spec
  return made
