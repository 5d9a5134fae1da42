"""Input for Keras' own functions, which run the steps in this very process."""

from typing import Any

import tensorflow as tf

from tfps._compat import keras_data
from tfps.keras import inputs


def input_of(strategy: Any, x: Any, steps_per_epoch: int | None) -> Any:
  """What `fit` gets as its input, as Keras takes it.

  A function of an `InputContext` makes this worker's dataset.
  """
  del steps_per_epoch
  return x(strategy.input_context()) if inputs.is_dataset_fn(x) else x


def dataset_of(adapter: Any) -> Any:
  """What Keras' trainer iterates over, which it calls a dataset."""
  dataset = adapter.get_tf_dataset()
  return _once(dataset) if keras_data.is_generator(adapter) else dataset


def _once(dataset: tf.data.Dataset) -> tf.data.Dataset:
  """A dataset that hands out each batch once, however often it is begun."""
  batches = inputs.Batches(dataset)
  once = tf.data.Dataset.from_generator(
    lambda: batches, output_signature=dataset.element_spec
  )
  options = tf.data.Options()
  # Else it takes a batch more than it is asked for, which is not put back.
  options.experimental_optimization.inject_prefetch = False
  once = once.with_options(options)
  once.put_back = batches.put_back
  return once
