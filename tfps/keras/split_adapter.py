"""Input of Keras' `fit` from the splits of a queue.

An epoch of Keras is an epoch of the queue. Workers take splits until all are
done; the number of steps is known only then.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfps._compat import keras_data
from tfps.input import per_worker
from tfps.input import pipelines
from tfps.input import readers as readers_lib
from tfps.input import sources
from tfps.input import split_progress as split_progress_lib
from tfps.input import tracing
from tfps.keras import model_program
from tfps.training import queue_sources
from tfps.training import step_loop
from tfps.updates import attempts as attempts_lib
from tfps.updates import sessions
from tfps.variables import step_replicas
from tfps.wire import transfers

MakeReaders = Callable[[Any, per_worker.DatasetFn], Any]


def takes_from_queue(dataset_fn: per_worker.DatasetFn) -> bool:
  """Returns whether a dataset function reads from a `SplitQueue`."""
  try:
    dataset_fn(tf.distribute.InputContext())
  except tracing.NeedsOrderError:
    return True
  return False


class QueueAdapter(keras_data.DataAdapter):
  """Data adapter whose batches workers read from the splits of a queue.

  Args:
    dataset_fn: makes the dataset of a split.
    make_readers: makes the readers from an executor and `dataset_fn`.
    by_epochs: whether an epoch is one of the queue; otherwise the caller ends
      it after a number of steps.
  """

  def __init__(
    self,
    dataset_fn: per_worker.DatasetFn,
    make_readers: MakeReaders,
    *,
    by_epochs: bool,
  ) -> None:
    self.has_own_epochs = by_epochs
    self._dataset_fn = dataset_fn
    self._make_readers = make_readers
    self._readers: readers_lib.Readers | None = None

  @property
  def num_batches(self) -> None:
    return None

  def get_tf_dataset(self) -> tf.data.Dataset:
    """Returns the first batch of any split, by which a model is built.

    Raises:
      ValueError: no split has a batch.
    """
    pipeline = pipelines.Pipelines(self._dataset_fn).trace(
      tf.distribute.InputContext()
    )
    first = tf.constant(0, tf.int64)
    for split in range(len(pipeline.splits)):
      dataset = pipeline.open(tf.constant(split, tf.int64), first, first)
      for _ in dataset.take(1):
        return dataset.take(1)
    raise pipeline.no_batch_error()

  def __iter__(self) -> 'Epoch':
    return Epoch(self)

  def readers(self, executor: Any) -> readers_lib.Readers:
    """Returns the readers of batches; makes them for an executor."""
    if self._readers is None:
      self._readers = self._make_readers(executor, self._dataset_fn)
      self._readers.split_progress.trace()
    return self._readers


class Epoch:
  """The batches of an epoch that are not done yet.

  Args:
    adapter: makes the readers.
  """

  def __init__(self, adapter: QueueAdapter) -> None:
    self._adapter = adapter
    self._readers: readers_lib.Readers | None = None
    self._has_given_first = False

  def __next__(self) -> Any:
    if self._has_given_first:
      raise ValueError(
        'predict: x takes from a SplitQueue, which shares out what is to be '
        'trained on. Give it to fit, and predict a dataset.'
      )
    self._has_given_first = True
    return next(iter(self._adapter.get_tf_dataset()))

  def readers(self, executor: Any) -> readers_lib.Readers:
    """Returns the readers of the epoch's batches; begins the epoch.

    Raises:
      tf.errors.OpError: the ps is lost.
    """
    readers = self._readers
    if readers is None:
      readers = self._adapter.readers(executor)
      if self._adapter.has_own_epochs:
        _begin(readers)
      self._readers = readers
    return readers


def _begin(readers: readers_lib.Readers) -> None:
  """Begins an epoch: the queue's current one, or the next."""
  if readers.until == split_progress_lib.ENDLESS:
    readers.until = readers.split_progress.first_epoch()
  readers.until += 1
  readers.finished = False


def is_over(readers: readers_lib.Readers) -> bool:
  """Returns whether the epoch has ended, which is read from the ps.

  Raises:
    tf.errors.OpError: the ps is lost.
  """
  readers.finished = readers.split_progress.is_finished(readers.until)
  return readers.finished


class Attempts:
  """Makes attempts to do steps of a model on the batches of a queue.

  Args:
    executions: traces the steps.
    executor: executes them.
    replicas: the replicas of a step.
    sync_session: logs the steps, or synchronizes the workers.
  """

  def __init__(
    self,
    executions: model_program.Executions,
    executor: Any,
    replicas: step_replicas.Replicas,
    sync_session: sessions.Session,
  ) -> None:
    self._executions = executions
    self._executor = executor
    self._replicas = replicas
    self._sync_session = sync_session
    self._kind: Any = None
    # Of full executions by their number of steps and form, and of single steps
    # by the former.
    self._functions: dict[tuple[int, step_loop.Form], Any] = {}
    self._singles: dict[int, Callable[[int], Any]] = {}

  def make(
    self,
    readers: readers_lib.Readers,
    num_steps: int,
    carried: list[np.ndarray],
  ) -> tuple[Any, queue_sources.Attempt]:
    """Makes an attempt to do steps.

    Args:
      readers: reads the batches.
      num_steps: how many steps to do if there are as many batches.
      carried: the carried values.

    Returns:
      A function for `num_steps` steps, and the attempt that calls it. The
      attempt's result is a list of numbers of steps, each with the arguments
      of `Executions.result`.

    Raises:
      model_program.NotAdditiveError: functions have to be traced again.
    """
    kind = (readers.split_progress, readers.element_spec)
    if kind != self._kind:
      self._kind = kind
      self.forget()
    form = self._executions.unrolling.form(num_steps, num_steps)
    if (num_steps, form) not in self._functions:
      found = queue_sources.of(readers, self._replicas, num_steps)
      self._functions[num_steps, form] = self._traced(found.full, num_steps)
      if num_steps not in self._singles:
        self._singles[num_steps] = found.traced(
          lambda source: self._traced(source, 1)
        )
    single = self._singles[num_steps]
    steps = _Steps(
      num_steps, single, self._executions, carried, self._sync_session
    )
    steps.sizes = self._replicas.sizes
    function = self._functions[num_steps, form]
    return function, queue_sources.attempt(readers, num_steps, steps)

  def forget(self) -> None:
    """Drops all functions, so that they are traced again."""
    self._functions.clear()
    self._singles.clear()

  def _traced(self, source: sources.Source, num_steps: int) -> Any:
    with self._executor.scheduling():
      return transfers.trace_until_stable(
        lambda: self._executions.on_source(source, num_steps)
      )


class _Steps:
  """Steps of a model on a queue's batches, with values carried between them.

  Args:
    num_steps: how many steps a function does.
    single: returns a function that does one step on a number of batches.
    executions: unpacks results.
    carried: the values carried to the first step.
    sync_session: as for `Attempts`.
  """

  sizes: tuple[int, ...] = (1,)

  def __init__(
    self,
    num_steps: int,
    single: Callable[[int], Any],
    executions: model_program.Executions,
    carried: list[np.ndarray],
    sync_session: sessions.Session,
  ) -> None:
    self.num_steps = num_steps
    self.sync_session = sync_session
    self._single = single
    self._executions = executions
    self._carried = carried

  def attempt(self) -> attempts_lib.Attempt | None:
    if self.sync_session.waits:  # `queue_attempts` takes part in it itself
      return None
    is_logged = self._executions.form(self.num_steps).is_logged
    attempt: attempts_lib.Attempt | None
    attempt = self.sync_session.attempt(self.num_steps, is_logged=is_logged)
    return attempt

  def do_all(
    self, function: Callable[..., Any], given: Any, *ids: Any
  ) -> tuple[Any, int, bool, int, Any]:
    batches, *fetched = function(given, _constants(self._carried), *ids)
    vector, others = _arrays(fetched)
    *vector, number, ended, counted = vector
    result = [(self.num_steps, np.array(vector), others)]
    return batches, int(number), bool(ended), int(counted), result

  def do_whole(
    self, function: Callable[..., Any], given: Any, *told: Any
  ) -> Any:
    fetched = function(given, _constants(self._carried), *told)
    vector, others = _arrays(fetched)
    return self.num_steps, vector[:-1], others

  def do_one(
    self, size: int, given: Any, before: list[Any], *ids: Any
  ) -> tuple[int, Any]:
    carried = self._carried
    if before:
      number, *last = before[-1]
      carried = self._executions.carried(last, number)
    fetched = self._single(size)(given, _constants(carried), *ids)
    vector, others = _arrays(fetched)
    *vector, counted = vector
    return int(counted), (1, np.array(vector), others)

  def join(self, results: list[Any]) -> Any:
    return list(results)


def _constants(values: list[np.ndarray]) -> list[tf.Tensor]:
  """Makes constants in this process; on a frozen worker they would block."""
  with tf.device(None):
    return [tf.constant(value) for value in values]


def _arrays(fetched: Any) -> Any:
  return tf.nest.map_structure(np.asarray, fetched)
