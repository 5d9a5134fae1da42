"""Input of steps that span all workers."""

from collections.abc import Callable
from typing import Any
from typing import TypeVar
import weakref

import tensorflow as tf

from tfps.input import joint_iterators
from tfps.input import joint_readers
from tfps.input import per_worker
from tfps.recovery import client_recovery

_Result = TypeVar('_Result')


class JointInput:
  """Base class of strategies whose steps take a batch for each worker.

  Attributes:
    extended: has the replicas of a step.
    guard: recovers from lost ps; None without a `Recovery`.
    num_replicas_in_sync: number of devices on which a step runs.
  """

  extended: Any
  guard: client_recovery.ClientRecovery | None
  num_replicas_in_sync: int

  surviving: Callable[[Callable[[], Any]], Any]
  _worker_devices: Callable[[], list[str]]

  # Those in use, of which the loops of training have only the handles.
  _iterators: weakref.WeakSet[joint_iterators.JointIterators]

  def batches(
    self, dataset_fn: per_worker.DatasetFn
  ) -> joint_iterators.JointIterators:
    """Returns the batches of the workers, for `train`.

    Args:
      dataset_fn: makes a worker's dataset from its `InputContext`.

    Raises:
      ValueError: the workers' datasets have elements of different types.
    """
    made: joint_iterators.JointIterators = self.surviving(
      lambda: joint_iterators.JointIterators(
        self._worker_devices(),
        self.num_replicas_in_sync,
        dataset_fn,
        lambda: self.num_interruptions,
      )
    )
    self._iterators.add(made)
    return made

  def readers(
    self, dataset_fn: per_worker.DatasetFn
  ) -> joint_readers.JointReaders:
    """Returns the readers of the workers' batches from a queue.

    Args:
      dataset_fn: makes the dataset of a split.

    Raises:
      ValueError: the splits' datasets have elements of different types, or the
        ps have the progress of another queue.
    """
    devices, replicas = self._worker_devices(), self.extended.replicas
    number = (lambda: self.num_interruptions) if self.guard else None
    made: joint_readers.JointReaders = self.surviving(
      lambda: joint_readers.JointReaders(devices, replicas, dataset_fn, number)
    )
    return made

  def input_context(self) -> tf.distribute.InputContext:
    """Returns the context of an input whose batches are divided by replicas."""
    return tf.distribute.InputContext(num_input_pipelines=1)

  @property
  def num_interruptions(self) -> int:
    """Number of calls that the loss of a ps interrupted, and were repeated."""
    return self.guard.num_interruptions if self.guard else 0

  def _beginning_again(
    self, function: Callable[[], _Result]
  ) -> Callable[[], _Result]:
    """Returns a function that first begins iterators again that were lost."""

    def call() -> _Result:
      for each in list(self._iterators):
        each.begin_again_if_due()
      return function()

    return call
