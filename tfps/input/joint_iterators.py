"""Iterators over the datasets of all workers, for steps of one graph."""

from collections.abc import Callable
from collections.abc import Sequence

import tensorflow as tf

from tfps.input import iterators
from tfps.input import per_worker


class JointIterators:
  """Iterators on all workers, each over the worker's own dataset.

  Args:
    devices: the workers' devices, which hold their batches.
    num_replicas: number of replicas of a step.
    dataset_fn: makes a worker's dataset from its `InputContext`.
    num_interruptions: returns how many executions have been interrupted, after
      which the datasets begin again.

  Attributes:
    spec: the types of `iterator`.
    iterator: a list with an iterator for each worker.

  Raises:
    ValueError: the workers' datasets have elements of different types.
  """

  def __init__(
    self,
    devices: Sequence[str],
    num_replicas: int,
    dataset_fn: per_worker.DatasetFn,
    num_interruptions: Callable[[], int],
  ) -> None:
    self._devices = devices
    self._made = per_worker.trace(dataset_fn, len(devices), num_replicas)
    specs = [fn.structured_outputs.element_spec for fn in self._made]
    self.spec = [tf.data.IteratorSpec(spec) for spec in specs]
    emptying = iterators.emptying(specs[0])
    self.iterator = []
    for device, fn in zip(self._devices, self._made, strict=True):
      with tf.device(device):
        self.iterator.append(iterators.over(fn(), emptying))
    self._num_interruptions = num_interruptions
    self._begun_after = num_interruptions()

  def begin_again_if_due(self) -> None:
    """Lets all iterators begin their datasets again after an interruption.

    It may have left them at, or near, their ends; see `RestartableIterator`.
    """
    number = self._num_interruptions()
    if number == self._begun_after:
      return
    for device, fn, iterator in zip(
      self._devices, self._made, self.iterator, strict=True
    ):
      with tf.device(device):
        iterators.begin_again(iterator, fn())
    self._begun_after = number
