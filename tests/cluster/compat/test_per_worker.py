"""Canaries for what `tfps._compat.per_worker` relies upon."""

import tensorflow as tf

from tfps._compat import per_worker as compat


def test_iterators_of_own_datasets_are_scheduled(coordinator):
  dataset_fn = tf.function(lambda: tf.data.Dataset.range(3, 5))
  iterators, spec = compat.iterators(
    coordinator, lambda *worker: dataset_fn.get_concrete_function(), iter
  )
  take = tf.function(lambda batches: next(batches), input_signature=[spec])
  got = [coordinator.schedule(take, (iterators,)) for _ in range(2)]
  assert [int(coordinator.fetch(value)) for value in got] == [3, 4]


def test_a_resource_is_made_like_that_of_another_worker(coordinator):
  [worker] = coordinator._cluster.workers
  dataset = coordinator.create_per_worker_dataset(
    lambda: tf.data.Dataset.range(3)
  )
  [iterator] = iter(dataset)._values
  made = compat._like(iterator, worker)
  assert made is not iterator
  assert made._type_spec == iterator._type_spec
  assert next(made.get()).numpy() == 0
