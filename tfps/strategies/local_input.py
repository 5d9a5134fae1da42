"""Input of workers that each run the program."""

import tensorflow as tf

from tfps.cluster import spec as spec_lib
from tfps.input import iterators
from tfps.input import per_worker
from tfps.input import readers as readers_lib
from tfps.recovery import client_recovery
from tfps.strategies import peers


class LocalInput:
  """Base class of strategies whose workers make their own datasets.

  Strategies set the attributes in their constructors.

  Attributes:
    task: the task of this process.
    guard: recovers from lost ps; None without a `Recovery`.
    num_replicas_in_sync: number of devices on which a step runs.
  """

  task: spec_lib.Task
  guard: client_recovery.ClientRecovery | None
  num_replicas_in_sync: int

  _cluster: spec_lib.Cluster
  _peers: peers.Peers

  def readers(self, dataset_fn: per_worker.DatasetFn) -> readers_lib.OwnReaders:
    """Returns the reader of this worker's batches from a queue.

    Args:
      dataset_fn: makes the dataset of a split.

    Raises:
      ValueError: there is no ps.
    """
    if not self._cluster.num_ps:
      raise ValueError(
        f'{dataset_fn}: takes from a SplitQueue, which is kept on a ps, and '
        f'{type(self).__name__} has none. Shard the data by the InputContext, '
        'or take a HybridStrategy.'
      )
    return readers_lib.OwnReaders(
      self.task,
      self.addresses(),
      dataset_fn,
      self.replica_input_context(),
      lambda: self.num_interruptions,
    )

  @property
  def num_workers(self) -> int:
    """The number of workers of the cluster, including the chief."""
    return len(self._peers.tasks)

  def input_context(self) -> tf.distribute.InputContext:
    """Returns this worker's context, by which to shard data.

    Batches are for the whole worker: `fit` and
    `experimental_distribute_dataset` divide them among its devices.
    """
    return self._peers.input_context(1)

  def replica_input_context(self) -> tf.distribute.InputContext:
    """Returns the context for batches that are for one of its devices."""
    return self._peers.input_context(self.num_replicas_in_sync)

  def batches(
    self, dataset_fn: per_worker.DatasetFn
  ) -> iterators.RestartableIterator:
    """Returns this worker's batches, for `train`.

    Args:
      dataset_fn: makes the dataset from an `InputContext`.
    """
    dataset = dataset_fn(self.replica_input_context())
    return iterators.RestartableIterator(
      dataset, lambda: self.num_interruptions
    )

  @property
  def num_interruptions(self) -> int:
    """The number of executions that the loss of a ps has interrupted."""
    return self.guard.num_interruptions if self.guard else 0

  def addresses(self) -> dict[spec_lib.Task, str]:
    """Returns the addresses of the tasks that run the program."""
    return self._peers.addresses()
