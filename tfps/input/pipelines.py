"""Traced pipelines that turn a split into batches."""

import functools
from typing import Any

import tensorflow as tf

from tfps._compat import autograph
from tfps.input import batch_list
from tfps.input import iterators
from tfps.input import per_worker
from tfps.input import tracing
from tfps.input import worker_reader

_NUMBER = tf.TensorSpec([], tf.int64)
_LIST = tf.TensorSpec([], tf.variant)


class Pipelines:
  """Pipelines of all workers, each traced with its worker's input context.

  Args:
    dataset_fn: makes the dataset of a split.

  Attributes:
    queue: the queue of the splits; None until a pipeline was traced.
    element_spec: the type of a batch; None until a pipeline was traced.
  """

  def __init__(self, dataset_fn: per_worker.DatasetFn) -> None:
    self.queue: Any = None
    self.element_spec: Any = None
    self._dataset_fn = autograph.convert(dataset_fn)
    self._over: Any = None
    self._read: Any = None
    self._empty: Any = None
    self._pick: Any = None
    self._empty_splits: set[int] = set()

  def trace(
    self, context: tf.distribute.InputContext
  ) -> worker_reader.Pipeline:
    """Traces the pipeline of a worker.

    Args:
      context: the worker's.

    Raises:
      ValueError: `dataset_fn` does not read from a queue, or its batches are
        of another type than those of another worker.
    """
    opening = tf.function(
      lambda *place: self._open(context, *place),
      input_signature=[_NUMBER] * 3,
      autograph=False,
    ).get_concrete_function()
    spec = opening.structured_outputs.element_spec
    if self.element_spec is None:
      self.element_spec = spec
      self._over = functools.partial(
        iterators.over, emptying=iterators.emptying(spec)
      )
      iterator = tf.data.IteratorSpec(spec)
      self._read = tf.function(
        batch_list.read, autograph=False
      ).get_concrete_function(iterator, _LIST, _NUMBER)
      self._empty = tf.function(
        batch_list.empty, autograph=False
      ).get_concrete_function()
      pick = functools.partial(batch_list.pick, spec)
      self._pick = tf.function(pick, autograph=False).get_concrete_function(
        _LIST, _NUMBER
      )
    elif spec != self.element_spec:
      raise ValueError(
        f'dataset_fn: the elements for worker:{context.input_pipeline_id} are '
        f'{spec}, but those for the first are {self.element_spec}. All must be '
        'of one type, for example with batch(..., drop_remainder=True).'
      )
    return worker_reader.Pipeline(
      self.queue.splits,
      opening,
      self._over,
      self._read,
      self._empty,
      self._pick,
      self._empty_splits,
    )

  def _open(
    self,
    context: tf.distribute.InputContext,
    split: tf.Tensor,
    epoch: tf.Tensor,
    position: tf.Tensor,
  ) -> tf.data.Dataset:
    order = tracing.Order(split, epoch, self.queue)
    with tracing.given(order):
      dataset = self._dataset_fn(context)
    if not hasattr(dataset, 'element_spec'):
      raise ValueError(
        f'dataset_fn: returned {dataset!r}, which is not a tf.data.Dataset. '
        'Return one.'
      )
    self.queue = order.queue
    return self.queue.rest(dataset, position)
