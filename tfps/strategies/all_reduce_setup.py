"""Task, algorithm and input of an AllReduceStrategy, checked."""

from typing import Any

import tensorflow as tf

from tfps.cluster import spec as spec_lib
from tfps.input import batch_rows
from tfps.strategies import peers as peers_lib
from tfps.updates.allreduce import local_state as local_state_lib
from tfps.updates.allreduce import reduction as reduction_lib
from tfps.variables import mirrored
from tfps.wire import config as wire_config
from tfps.wire import transfers

_SHARDED = (
  tf.data.experimental.AutoShardPolicy.FILE,
  tf.data.experimental.AutoShardPolicy.HINT,
)


def trainer(cluster: spec_lib.Cluster) -> spec_lib.Task:
  """Returns the task of this process, which trains.

  Args:
    cluster: of this process.

  Raises:
    ValueError: it is not a chief or worker of the cluster, or there are ps.
  """
  task = cluster.task
  if not cluster.jobs:
    return spec_lib.CHIEF
  if task is None or task not in cluster.tasks() or task.job == 'ps':
    raise ValueError(
      f'{cluster.source}: AllReduceStrategy is for the chief and workers of a '
      f'cluster, and this process is {task or "no task"}.'
    )
  if cluster.num_ps:
    raise ValueError(
      f'{cluster.source}: AllReduceStrategy needs no ps, and the cluster has '
      f'{cluster.num_ps}, which would wait for clients in vain. Leave them '
      'out, or take a HybridStrategy, which keeps large tables on ps.'
    )
  return task


def algorithm(options: Any) -> dict[str, Any]:
  """Returns the arguments of `Reduction` for TensorFlow's options.

  Args:
    options: `tf.distribute.experimental.CommunicationOptions`, or None.

  Raises:
    ValueError: NCCL is asked for, and this process sees no GPU.
  """
  implementations = tf.distribute.experimental.CommunicationImplementation
  wanted = getattr(options, 'implementation', implementations.AUTO)
  has_gpu = bool(tf.config.get_visible_devices('GPU'))
  if wanted == implementations.AUTO:
    wanted = implementations.NCCL if has_gpu else implementations.RING
  is_nccl = wanted == implementations.NCCL
  if is_nccl and not has_gpu:
    raise ValueError(
      'AllReduceStrategy: communication_options ask for NCCL, and this process '
      'sees no GPU. Use AUTO, or RING.'
    )
  return {
    'hint': 'nccl' if is_nccl else 'ring',
    'device': '/device:GPU:0' if is_nccl else '/device:CPU:0',
    'bucket_bytes': getattr(options, 'bytes_per_pack', None) or None,
  }


def extended_of(
  strategy: tf.distribute.Strategy,
  cluster: spec_lib.Cluster,
  peers: peers_lib.Peers,
) -> tuple[mirrored.Extended, local_state_lib.LocalState]:
  """Returns the extended strategy, which makes variables, and their state.

  Args:
    strategy: the strategy.
    cluster: of its workers.
    peers: its workers.
  """
  resolver = cluster.resolver()
  extended = mirrored.Extended(strategy, resolver, None)
  extended._cluster_resolver = resolver  # of `tf.distribute.Strategy`
  extended.index, extended.num_workers = peers.index, len(peers.tasks)
  local_state = local_state_lib.LocalState()
  extended.variables = local_state.variables
  return extended, local_state


def no_transfers() -> transfers.Transfers:
  """Returns the transfers of a strategy without ps, by which steps are looped.

  TensorFlow distinguishes collectives by the iteration of their loop, so all
  workers must have the same loops: none may unroll them by itself.
  """
  return transfers.Transfers(
    wire_config.Wire(fuse=False, unroll=1), 0, is_local=True
  )


class Shares:
  """A worker's shares of batches that are for all workers together.

  Args:
    reduction: knows which workers train.
    num_workers: number of workers of the cluster.
  """

  def __init__(
    self, reduction: reduction_lib.Reduction, num_workers: int
  ) -> None:
    self._reduction = reduction
    self._num_workers = num_workers

  def of(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns this worker's parts of the batches of a dataset.

    Args:
      dataset: has batches for all workers, unless its auto-shard policy is OFF.

    Raises:
      ValueError: its policy is to distribute files.
    """
    if not self.divide(dataset):
      return dataset

    # A function gets the elements of a tuple as arguments of their own.
    is_tuple = type(dataset.element_spec) is tuple

    def part(*batch: Any) -> Any:
      found = tf.nest.map_structure(self._rows, batch)
      return found if is_tuple else found[0]

    return dataset.map(part)

  def _rows(self, leaf: Any) -> Any:
    if leaf is None or leaf.shape.rank == 0:
      return leaf
    number = tf.cast(batch_rows.count(leaf), tf.int64)
    rank, size = self._reduction.rank, self._reduction.size
    rank, size = tf.cast(rank, tf.int64), tf.cast(size, tf.int64)
    first, last = number * rank // size, number * (rank + 1) // size
    return batch_rows.part(leaf, first, last)

  def divide(self, dataset: tf.data.Dataset) -> bool:
    """Returns whether batches of a dataset are for all workers together.

    Args:
      dataset: the dataset.

    Raises:
      ValueError: its auto-shard policy is to distribute files.
    """
    policy = dataset.options().experimental_distribute.auto_shard_policy
    if policy in _SHARDED:
      raise ValueError(
        'AllReduceStrategy: the auto-shard policy of the dataset is '
        f'{policy.name}, and workers come and go. Use DATA, or pass a function '
        'of an InputContext that reads its own files.'
      )
    is_whole = policy == tf.data.experimental.AutoShardPolicy.OFF
    return not is_whole and self._num_workers > 1

  def rank_and_size(self) -> tuple[int, int]:
    """Returns this worker's place among those that train, and their number."""
    reduction = self._reduction
    return int(reduction.rank.numpy()), int(reduction.size.numpy())
