"""Variables that every worker has for itself, and reductions over workers."""

from collections.abc import Iterator
import contextlib
from typing import Any

import tensorflow as tf

from tfps._compat import keras as keras_compat
from tfps._compat import write_counts
from tfps.variables import extended
from tfps.variables import shared_extended
from tfps.variables import step_replicas


class Extended(shared_extended.Extended):
  """Creates variables in this process, and adds up values over workers.

  Attributes:
    variables: all variables that are to be equal on all workers, in the order
      of creation.
    index: number of this worker.
    num_workers: number of workers of the cluster.
    weight: weight of this worker's batch in the step that is being traced; None
      if all workers' batches are of equal size.
    counts: 0 if others count the metrics of this worker's batch, 1 if it does;
      None if each worker has a batch of its own.
  """

  make_own: Any = None  # there are no ps
  index = 0
  num_workers = 1

  def __init__(self, *args: Any, **kwargs: Any) -> None:
    super().__init__(*args, **kwargs)
    self.variables: list[Any] = []
    self.weight: Any = None
    self.counts: Any = None
    self._writes: dict[int, int] = {}

  @property
  def _num_replicas_in_sync(self) -> int:
    return self.num_workers

  def _create_variable(self, next_creator: Any, **kwargs: Any) -> Any:
    extended.register_with_keras()
    if keras_compat.is_metric(kwargs) or keras_compat.is_seed_state(kwargs):
      return extended.Extended._create_local(self, next_creator, **kwargs)
    variable = self._create_local(next_creator, **kwargs)
    on_read = tf.VariableSynchronization.ON_READ
    if kwargs.get('synchronization') != on_read:
      self.variables.append(variable)
    return variable

  def _call_for_each_replica(self, fn: Any, args: Any, kwargs: Any) -> Any:
    strategy = self._container_strategy()
    with (
      self._computing(),
      tf.distribute.ReplicaContext(
        strategy, replica_id_in_sync_group=self.index
      ),
      strategy.gradients.in_step(),
    ):
      return fn(*args, **kwargs)

  @contextlib.contextmanager
  def noting_writes(self) -> Iterator[None]:
    """Returns a context of a step, within which `take_written` is called."""
    self.skip_written()
    try:
      yield
    finally:
      self.weight = None
      self._writes = {}

  def note_part(self, part: step_replicas.Weighted) -> None:
    """Notes the weight of the batch of the step that is being traced."""
    self.weight, self.counts = part.weight, part.counts

  def skip_written(self) -> None:
    """Lets `take_written` leave out what the step has written so far."""
    if not tf.executing_eagerly():
      graph = tf.compat.v1.get_default_graph()
      self._writes = write_counts.writes_by_handle(graph)

  def take_written(self, *, with_trainable: bool = False) -> list[Any]:
    """Returns the variables that workers' batches have changed in this step.

    These are, for example, the moving averages of a batch normalization. A
    variable is returned once for the writes since the last call. Integers are
    left out: they change by what all workers have in common.

    Args:
      with_trainable: whether trainable ones are among them, which an optimizer
        changes by what all workers have in common.
    """
    before = self._writes
    self.skip_written()
    return [
      variable
      for variable in self.variables
      if (with_trainable or not variable.trainable)
      and variable.dtype.is_floating
      and self._writes.get(id(variable.handle), 0)
      > before.get(id(variable.handle), 0)
    ]

  # Values of one worker are added up with those of the others.

  def _replica_ctx_all_reduce(
    self, reduce_op: Any, value: Any, options: Any = None
  ) -> Any:
    del options
    return self._container_strategy().all_reduce(reduce_op, value)

  def _reduce(self, reduce_op: Any, value: Any) -> Any:
    return self._container_strategy().all_reduce(reduce_op, value)

  def _reduce_to(
    self, reduce_op: Any, value: Any, destinations: Any, options: Any
  ) -> Any:
    del destinations, options
    return self._container_strategy().all_reduce(reduce_op, value)

  def _batch_reduce_to(
    self, reduce_op: Any, value_destination_pairs: Any, options: Any
  ) -> Any:
    values = [value for value, _ in value_destination_pairs]
    return self._container_strategy().all_reduce(reduce_op, values)

  def _experimental_distribute_dataset(self, dataset: Any, options: Any) -> Any:
    del options
    return self._container_strategy().shares.of(dataset)

  def _distribute_datasets_from_function(
    self, dataset_fn: Any, options: Any
  ) -> Any:
    del options
    return dataset_fn(self._container_strategy().input_context())
