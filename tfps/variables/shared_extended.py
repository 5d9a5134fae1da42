"""The variables and steps of `BetweenGraphStrategy`."""

from collections.abc import Mapping
import contextlib
from typing import Any

import tensorflow as tf

from tfps._compat import keras as keras_compat
from tfps._compat import replicas as replicas_compat
from tfps._compat import strategy as compat
from tfps.variables import extended
from tfps.variables import placement_ledger
from tfps.variables import sharded
from tfps.variables import shared_variables


class Extended(extended.Extended):
  """Shares variables by name, and runs steps in the calling process."""

  is_chief: bool
  shared: shared_variables.SharedVariables

  def __init__(self, *args: Any, **kwargs: Any) -> None:
    super().__init__(*args, **kwargs)
    # Otherwise TensorFlow warns that nothing schedules the steps.
    self._allow_run_without_coordinator = True

  def _is_local(self, kwargs: Mapping[str, Any]) -> bool:
    owner = kwargs.get('colocate_with')
    if isinstance(owner, sharded.ShardedVariable):
      return False
    if kwargs.get('per_worker_variable'):
      return True
    if owner is not None:
      return placement_ledger.ps_index(getattr(owner, 'device', '')) is None
    on_read = tf.VariableSynchronization.ON_READ
    return kwargs.get(
      'synchronization'
    ) == on_read or keras_compat.is_seed_state(kwargs)

  def _create_local(self, next_creator: Any, **kwargs: Any) -> Any:
    kwargs.pop('per_worker_variable', None)
    with compat.colocated(None), tf.device(None):
      return next_creator(**kwargs)

  # A single replica needs no threads of TensorFlow to synchronize replicas.

  def _call_for_each_replica(self, fn: Any, args: Any, kwargs: Any) -> Any:
    if self.replicas.are_several:
      return super()._call_for_each_replica(fn, args, kwargs)
    strategy = self._container_strategy()
    with (
      self._computing(),
      tf.distribute.ReplicaContext(strategy, replica_id_in_sync_group=0),
      strategy.transfers.single_step(),
    ):
      return fn(*args, **kwargs)

  def _computing(self) -> contextlib.AbstractContextManager[Any]:
    """Returns the device scope of a single replica.

    A GPU is named, since executions on batches of a queue have the CPU as their
    default device.
    """
    (device,) = self.replicas.devices
    is_gpu = tf.DeviceSpec.from_string(device).device_type == 'GPU'
    return tf.device(device) if is_gpu else contextlib.nullcontext()

  def _reduce_to(
    self, reduce_op: Any, value: Any, destinations: Any, options: Any
  ) -> Any:
    if self.replicas.are_several:
      return super()._reduce_to(reduce_op, value, destinations, options)
    return value

  def _reduce(self, reduce_op: Any, value: Any) -> Any:
    if self.replicas.are_several:
      return super()._reduce(reduce_op, value)
    return value

  def _experimental_distribute_dataset(self, dataset: Any, options: Any) -> Any:
    if self.replicas.are_several:
      return replicas_compat.built(
        super()._experimental_distribute_dataset(dataset, options)
      )
    return dataset

  def _distribute_datasets_from_function(
    self, dataset_fn: Any, options: Any
  ) -> Any:
    context = self._container_strategy().replica_input_context()
    if self.replicas.are_several:
      return replicas_compat.built(
        super()._distribute_datasets_from_function(
          lambda _: dataset_fn(context), options
        )
      )
    return dataset_fn(context)

  def _resource_creator_scope(self) -> Any:
    return []  # lookup tables stay in the worker

  @property
  def should_checkpoint(self) -> bool:
    """True on the chief, which saves checkpoints."""
    return self.is_chief

  @property
  def should_save_summary(self) -> bool:
    """True on the chief, which writes summaries."""
    return self.is_chief
