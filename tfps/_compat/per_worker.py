"""Resources of which each worker of a coordinator's has its own.

TensorFlow makes them for the workers that are there. For one that joins later
they are made like those of the first, once it is to use them.
"""

from collections.abc import Callable
from collections.abc import Sequence
import functools
import threading
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import input_lib
from tensorflow.python.distribute.coordinator import values

_making_up = threading.Lock()


def make_up(closure: Any, workers: Sequence[Any]) -> bool:
  """Makes what a closure needs on each worker, where that is not there.

  What is scheduled for one worker comes before all else.

  Args:
    closure: to be executed.
    workers: those of the coordinator.

  Returns:
    Whether there was anything to be made.
  """
  given = tf.nest.flatten((closure._args, closure._kwargs))
  wanted = [
    value
    for value in given
    if isinstance(value, values.PerWorkerValues)
    and len(value._values) < len(workers)
  ]
  for value in wanted:
    with _making_up:
      for worker in workers[len(value._values) :]:
        value._values = (*value._values, _like(value._values[0], worker))
  return bool(wanted)


def iterators(
  coordinator: Any,
  dataset_fn: Callable[[int, int], Any],
  over: Callable[[tf.data.Dataset], Any],
) -> tuple[Any, Any]:
  """An iterator on each worker, of that worker's own endless dataset.

  `create_per_worker_dataset` calls one function on all workers, which then
  cannot know its worker but through a tensor.

  Args:
    coordinator: a `ClusterCoordinator`.
    dataset_fn: a concrete function that returns the dataset of a worker, for
      its index and how many there are; all of one element type. They begin
      again when the loss of a ps has cut short what used them: TensorFlow may
      leave an iterator near its end then, and a step without a batch may make
      some of its updates nevertheless.
    over: makes an iterator over a dataset.

  Returns:
    What to pass to `schedule`, and the type of the iterators.
  """
  strategy = coordinator.strategy
  workers = coordinator._cluster.workers

  def make_on(worker: Any) -> Any:
    fn = dataset_fn(worker.worker_index, len(workers))
    # Made again, by the same function, when a lost worker is back.
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
  """A resource on a worker like that which another worker has."""
  make_on = getattr(resource, '_make_on', None)
  if make_on is not None:
    return make_on(worker)
  closure = resource._closure
  made = worker.create_resource(
    closure._function, args=closure._args, kwargs=closure._kwargs
  )
  made._type_spec = resource._type_spec
  return made
