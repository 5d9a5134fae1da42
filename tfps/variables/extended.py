"""The part of a strategy that creates, places and updates variables."""

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfps import errors
from tfps._compat import atomic_scatter
from tfps._compat import autograph
from tfps._compat import checkpoint_graph
from tfps._compat import execution_variables
from tfps._compat import keras as keras_compat
from tfps._compat import keras_optimizers
from tfps._compat import keras_trainer
from tfps._compat import keras_variables
from tfps._compat import replicas as replicas_compat
from tfps._compat import saved_models
from tfps._compat import strategy as compat
from tfps.variables import growing
from tfps.variables import large_values
from tfps.variables import placement_ledger
from tfps.variables import sharded
from tfps.variables import shared_variables
from tfps.variables import step_replicas
from tfps.variables import variable_types

_PLACES = 'tfps_places'


class Extended(compat.Extended):
  """Creates, places and updates the variables of a strategy.

  Attributes:
    ledger: chooses the ps of each variable; set it before the first variable.
    notice: called with each variable created on a ps.
    shared: creates variables that processes share by name; None if the strategy
      has none.
    queues: queues of splits whose progress is kept on the ps.
    replicas: the replicas of each step.
    group: the replicas of the step that is being traced; None outside of steps
      and while merged gradients are applied.
  """

  ledger: placement_ledger.PlacementLedger
  notice: Callable[[Any], object] = staticmethod(lambda variable: None)
  shared: shared_variables.SharedVariables | None = None
  queues: tuple[Any, ...] = ()
  replicas = step_replicas.Replicas()
  group: step_replicas.Group | None = None

  @property
  def worker_devices(self) -> tuple[str, ...]:
    """The devices of the replicas."""
    return (self.group or self.replicas).devices

  @property
  def _num_replicas_in_sync(self) -> int:
    return self.replicas.per_worker

  def _scope(self, strategy: tf.distribute.Strategy) -> Any:
    checkpoint_graph.check_shapes(errors.other_shapes)
    register_with_keras()
    return super()._scope(strategy)

  def _create_variable(self, next_creator: Any, **kwargs: Any) -> Any:
    register_with_keras()  # Keras may have been imported since the scope began
    if self._is_local(kwargs):
      return self._create_local(next_creator, **kwargs)
    if kwargs.get('per_worker_variable'):
      return super()._create_variable(next_creator, **kwargs)
    variable = self._create_on_ps(next_creator, **kwargs)
    self.notice(variable)
    return variable

  def make_own(
    self, ps: int, name: str, value: tf.Tensor, *, is_saved: bool = True
  ) -> Any:
    """Creates a variable for internal use on a ps; reports leave it out.

    Args:
      ps: the index of the ps.
      name: name of the variable.
      value: its initial value.
      is_saved: whether recovery saves its value and restores it.
    """
    make = tf.Variable if self.shared is None else self.shared.make
    with tf.init_scope(), tf.device(placement_ledger.ps_device(ps)):
      variable = make(initial_value=value, name=name, trainable=False)
    if is_saved:
      self.notice(variable)
    return variable

  def _create_on_ps(self, next_creator: Any, **kwargs: Any) -> Any:
    owner = kwargs.get('colocate_with')
    if owner is None:
      return self._create_placed(next_creator, **kwargs)
    if isinstance(owner, sharded.ShardedVariable):
      return self._create_beside_shards(next_creator, owner, **kwargs)
    return self._create_beside(next_creator, **kwargs)

  def _create_var_creator(self, next_creator: Any, **kwargs: Any) -> Any:
    # TensorFlow calls the result for each variable and each shard.
    make = next_creator if self.shared is None else self.shared.make
    make = large_values.creator(make)
    if not self.replicas.are_several:
      return super()._create_var_creator(make, **kwargs)
    return replicas_compat.aggregating(
      self._container_strategy(), make, _aggregation(kwargs)
    )

  def _is_local(self, kwargs: Mapping[str, Any]) -> bool:
    """Returns whether a variable stays in this process."""
    return keras_compat.is_metric(kwargs) or keras_compat.is_seed_state(kwargs)

  def _create_local(self, next_creator: Any, **kwargs: Any) -> Any:
    with compat.colocated(None), tf.device(None):
      variable = next_creator(**kwargs)
    return execution_variables.ExecutionVariable(variable=variable)

  def _create_placed(self, next_creator: Any, **kwargs: Any) -> Any:
    place = growing.place()
    if place is not None:
      kwargs[_PLACES] = iter([place.number % self.ledger.num_ps])
      creator = self._create_var_creator(next_creator, **kwargs)
      return place.opened(self._create_variable_round_robin(creator, **kwargs))
    if self._variable_partitioner is not None:
      value = kwargs.get('initial_value')
      kwargs['initial_value'] = large_values.divisible(value)
      kwargs = variable_types.with_type(kwargs)
      if keras_variables.is_making() and not _is_floating(kwargs):
        # Keras does not expect its counters to be sharded.
        creator = self._create_var_creator(next_creator, **kwargs)
        return self._create_variable_round_robin(creator, **kwargs)
      kwargs = self._with_places(kwargs)
    variable = super()._create_variable(next_creator, **kwargs)
    if isinstance(variable, tf.__internal__.distribute.ShardedVariable):
      return sharded.ShardedVariable(variable.variables, name=variable.name)
    return variable

  def _with_places(self, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Chooses the ps of all shards at once; TensorFlow creates them singly."""
    sizes = variable_types.shard_bytes(kwargs, self._variable_partitioner)
    if len(sizes) < 2:
      return kwargs
    places = self.ledger.place(sizes, trainable=_is_trainable(kwargs))
    return {**kwargs, _PLACES: iter(places)}

  def _create_variable_round_robin(
    self, next_creator: Any, **kwargs: Any
  ) -> Any:
    # TensorFlow calls this for each variable and each shard.
    num_bytes = variable_types.num_bytes(kwargs)
    places = kwargs.pop(_PLACES, None) or iter(
      self.ledger.place([num_bytes], trainable=_is_trainable(kwargs))
    )
    ps = next(places)
    with compat.colocated(None), tf.device(placement_ledger.ps_device(ps)):
      variable = next_creator(**kwargs)
    self._variable_count += 1  # as TensorFlow does
    # A shared variable may exist on another ps already.
    found = placement_ledger.ps_index(variable.device)
    self.ledger.note(
      variable.name, num_bytes, ps=ps if found is None else found
    )
    return variable

  def _create_beside(self, next_creator: Any, **kwargs: Any) -> Any:
    variable = super()._create_variable(next_creator, **kwargs)
    if growing.grows(kwargs['colocate_with']):
      growing.opened(variable)
    ps = placement_ledger.ps_index(variable.device)
    if ps is not None:
      num_bytes = variable_types.num_bytes_of(variable.shape, variable.dtype)
      self.ledger.note_colocated(variable.name, num_bytes, ps=ps)
    return variable

  def _create_beside_shards(
    self, next_creator: Any, owner: sharded.ShardedVariable, **kwargs: Any
  ) -> Any:
    """Creates a variable sharded and placed like another of its shape."""
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

  def _call_for_each_replica(self, fn: Any, args: Any, kwargs: Any) -> Any:
    self.group = self.replicas.group(
      replicas_compat.batches_among((args, kwargs))
    )
    try:
      with self._container_strategy().transfers.single_step():
        return super()._call_for_each_replica(fn, args, kwargs)
    finally:
      self.group = None

  def _update(
    self, var: Any, fn: Any, args: Any, kwargs: Any, group: bool
  ) -> Any:
    if not isinstance(var, sharded.ShardedVariable):
      return super()._update(var, fn, args, kwargs, group)
    pieces = [_pieces(var, argument) for argument in args]
    return [
      super(Extended, self)._update(shard, fn, own, kwargs, group)
      for shard, *own in zip(var.variables, *pieces, strict=True)
    ]

  # A single replica has nothing to merge, and merged gradients are applied as
  # if there were one. Without `merge_call` an optimizer also works within
  # `tf.cond`.

  def _use_merge_call(self) -> bool:
    return step_replicas.is_replica_traced(self._container_strategy())

  def _replica_ctx_update(
    self,
    var: Any,
    fn: Any,
    args: Any = (),
    kwargs: Any = None,
    group: bool = True,
  ) -> Any:
    if self._use_merge_call():
      return super()._replica_ctx_update(var, fn, args, kwargs, group)
    return self._update(var, fn, args, kwargs or {}, group)

  def _replica_ctx_all_reduce(
    self, reduce_op: Any, value: Any, options: Any = None
  ) -> Any:
    if self._use_merge_call():
      return super()._replica_ctx_all_reduce(reduce_op, value, options)
    return value


def register_with_keras() -> None:
  """Replaces Keras' methods for our strategies, once it is imported."""
  keras_compat.add_on_ps()
  keras_compat.look_up_on_ps()
  atomic_scatter.take_part()
  keras_compat.regularize_on_ps()
  autograph.take_part()
  keras_optimizers.take_part()
  keras_trainer.take_part()
  saved_models.take_part()
  keras_variables.take_part(sharded.ShardedVariable)


def _pieces(variable: sharded.ShardedVariable, value: Any) -> list[Any]:
  """Returns each shard's part of an argument of an update."""
  shape = getattr(value, 'shape', None)
  if isinstance(value, sharded.ShardedVariable):
    shapes = [[shard.shape for shard in v.variables] for v in (variable, value)]
    if shapes[0] == shapes[1]:
      return list(value.variables)  # the update may assign to them
  if isinstance(value, tf.IndexedSlices) or shape == variable.shape:
    return variable.split(value)
  return [value] * len(variable.variables)


def _aggregation(kwargs: Mapping[str, Any]) -> tf.VariableAggregation:
  """Returns how values that replicas assign to a variable are aggregated.

  Keras leaves it unset, even for values that depend on the batch.
  """
  aggregation = kwargs.get('aggregation') or tf.VariableAggregation.NONE
  is_open = aggregation == tf.VariableAggregation.NONE
  if not is_open or not keras_variables.is_making():
    return aggregation
  kwargs = variable_types.with_type(dict(kwargs))
  if _is_floating(kwargs):
    return tf.VariableAggregation.MEAN
  return tf.VariableAggregation.ONLY_FIRST_REPLICA


def _is_floating(kwargs: Mapping[str, Any]) -> bool:
  return bool(tf.as_dtype(kwargs['dtype']).is_floating)


def _is_trainable(kwargs: Mapping[str, Any]) -> bool:
  return kwargs.get('trainable') is not False
