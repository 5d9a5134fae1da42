"""`tf.distribute.ParameterServerStrategy`, with placement by bytes.

```
strategy = tfps.ParameterServerStrategy(tfps.resolve_cluster())
with strategy.scope():
  table = tf.Variable(tf.zeros([1_000_000, 32]))
print(strategy.placement_report())
```
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps import _ledger
from tfps import _local_servers
from tfps import cluster as cluster_lib
from tfps import placement as placement_lib
from tfps import presence as presence_lib
from tfps import probe
from tfps import sharded
from tfps import variable_types
from tfps._compat import strategy as compat

_CHIEF = cluster_lib.Task('chief', 0)


class ParameterServerStrategy(tf.distribute.ParameterServerStrategy):
  """A drop-in for TensorFlow's class of the same name.

  This process becomes the chief, whose coordinator has workers execute
  functions; variables made in `scope` live on the ps tasks.

  Args:
    cluster: a `tfps.Cluster`, or a `tf.distribute.cluster_resolver` as for
      TensorFlow's class. `Cluster.local()` gets one ps and one worker within
      this process.
    variable_partitioner: how variables are cut into shards; see
      `tfps.partitioners`. By default they are not.
    placement: which ps gets which variable; see `tfps.placement`. By default
      `ByteBalanced()`.
    connect_timeout_secs: how long to wait for all ps and workers to answer.

  Raises:
    errors.UnreachableError: names the tasks that did not answer in time, or
      at whose addresses other tasks answered.
    errors.ClusterMismatchError: a task holds another idea of the cluster.
    ValueError: the cluster has no ps or no worker.
  """

  def __init__(
    self,
    cluster: Any,
    variable_partitioner: Callable[..., Sequence[int]] | None = None,
    *,
    placement: placement_lib.Placement | None = None,
    connect_timeout_secs: float = 120.0,
  ) -> None:
    self._connect_timeout_secs = connect_timeout_secs
    self._local: _local_servers.LocalCluster | None = None
    self._presence: presence_lib.Presence | None = None
    resolver = self._resolver(cluster)
    super().__init__(resolver, variable_partitioner)
    policy = placement or placement_lib.ByteBalanced()
    extended = _Extended(self, resolver, variable_partitioner)
    extended.ledger = _ledger.Ledger(policy, self._num_ps)
    compat.replace_extended(self, extended)

  def placement_report(self) -> _ledger.PlacementReport:
    """The bytes and the variables on each ps."""
    return self.extended.ledger.report()

  def close(self) -> None:
    """Tells ps and workers that training is done; twice is harmless.

    `Coordinator.close` calls it, and so does the end of a program that has not
    failed. Tasks that `tfps.serve` runs exit then.
    """
    if self._presence is not None:
      self._presence.stop()

  def _resolver(self, cluster: Any) -> Any:
    if not isinstance(cluster, cluster_lib.Cluster):
      return cluster
    if not cluster.jobs:
      self._local = _local_servers.LocalCluster(num_workers=1, num_ps=1)
      cluster = self._local.cluster
    if cluster.task not in (None, _CHIEF):
      raise ValueError(
        f'{cluster.source}: ParameterServerStrategy is for the chief, and this '
        f'process is {cluster.task}. Call tfps.serve in ps and worker tasks.'
      )
    return cluster.resolver()

  def _connect_to_cluster(self, coordinator_name: str) -> None:
    # TensorFlow's constructor calls this once it has checked the resolver. Its
    # own wait for a task that is missing has no end.
    cluster = cluster_lib.Cluster(
      self._cluster_resolver.cluster_spec().as_dict(), _CHIEF
    )
    servers = (*cluster.tasks('ps'), *cluster.tasks('worker'))
    probe.wait_until_alive(
      cluster, servers, timeout_secs=self._connect_timeout_secs
    )
    super()._connect_to_cluster(coordinator_name)
    others = [
      task
      for task in servers
      if not _local_servers.is_here(cluster.address(task))
    ]
    self._presence = presence_lib.Presence(
      cluster,
      _CHIEF,
      compat.own_address(coordinator_name),
      chief=True,
      servers=others,
    )
    self._presence.start()


class _Extended(compat.Extended):
  """Makes, places and updates the strategy's variables."""

  ledger: _ledger.Ledger

  def _create_variable(self, next_creator: Any, **kwargs: Any) -> Any:
    if kwargs.get('per_worker_variable'):
      return super()._create_variable(next_creator, **kwargs)
    owner = kwargs.get('colocate_with')
    if owner is None:
      return self._create_placed(next_creator, **kwargs)
    if isinstance(owner, sharded.ShardedVariable):
      return self._create_beside_shards(next_creator, owner, **kwargs)
    return self._create_beside(next_creator, **kwargs)

  def _create_placed(self, next_creator: Any, **kwargs: Any) -> Any:
    if self._variable_partitioner is not None:
      kwargs = variable_types.with_type(kwargs)
    variable = super()._create_variable(next_creator, **kwargs)
    if isinstance(variable, tf.__internal__.distribute.ShardedVariable):
      return sharded.ShardedVariable(variable.variables, name=variable.name)
    return variable

  def _create_variable_round_robin(
    self, next_creator: Any, **kwargs: Any
  ) -> Any:
    # TensorFlow's code calls this for each variable and for each shard.
    num_bytes = variable_types.num_bytes(kwargs)
    trainable = kwargs.get('trainable') is not False
    ps = self.ledger.place(num_bytes, trainable=trainable)
    with compat.colocated(None), tf.device(f'/job:ps/task:{ps}/device:CPU:0'):
      variable = next_creator(**kwargs)
    self.ledger.note(variable.name, num_bytes, ps=ps)
    return variable

  def _create_beside(self, next_creator: Any, **kwargs: Any) -> Any:
    variable = super()._create_variable(next_creator, **kwargs)
    ps = _ledger.ps_index(variable.device)
    if ps is not None:
      num_bytes = variable_types.num_bytes_of(variable.shape, variable.dtype)
      self.ledger.note_colocated(variable.name, num_bytes, ps=ps)
    return variable

  def _create_beside_shards(
    self, next_creator: Any, owner: sharded.ShardedVariable, **kwargs: Any
  ) -> Any:
    """A variable shaped like a sharded one, in shards beside its shards."""
    kwargs = variable_types.with_type(kwargs)
    if kwargs.get('shape') != owner.shape:
      kwargs['colocate_with'] = owner.variables[0]
      return self._create_beside(next_creator, **kwargs)
    name = kwargs.get('name') or 'Variable'
    parts = variable_types.shard_initial_values(kwargs, owner)
    shards = [
      self._create_beside(
        next_creator,
        **kwargs
        | {
          'colocate_with': shard,
          'initial_value': part,
          'shape': shard.shape,
          'name': f'{name}/part_{i}',
        },
      )
      for i, (shard, part) in enumerate(
        zip(owner.variables, parts, strict=True)
      )
    ]
    return sharded.ShardedVariable(shards, name=name)

  def _update(
    self, var: Any, fn: Any, args: Any, kwargs: Any, group: bool
  ) -> Any:
    if not isinstance(var, sharded.ShardedVariable):
      return super()._update(var, fn, args, kwargs, group)
    pieces = [_pieces(var, argument) for argument in args]
    return [
      super(_Extended, self)._update(shard, fn, own, kwargs, group)
      for shard, *own in zip(var.variables, *pieces, strict=True)
    ]

  # With one replica there is nothing to merge. Without `merge_call` an
  # optimizer works within `tf.cond`, too, and applies what it is given.

  def _use_merge_call(self) -> bool:
    return self._num_replicas_in_sync > 1

  def _replica_ctx_update(
    self,
    var: Any,
    fn: Any,
    args: Any = (),
    kwargs: Any = None,
    group: bool = True,
  ) -> Any:
    return self._update(var, fn, args, kwargs or {}, group)

  def _replica_ctx_all_reduce(
    self, reduce_op: Any, value: Any, options: Any = None
  ) -> Any:
    del reduce_op, options
    return value


def _pieces(variable: sharded.ShardedVariable, value: Any) -> list[Any]:
  """What each shard gets of an argument of an update."""
  shape = getattr(value, 'shape', None)
  if isinstance(value, tf.IndexedSlices) or shape == variable.shape:
    return variable.split(value)
  return [value] * len(variable.variables)
