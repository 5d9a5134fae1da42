"""Replicas of a step, which TensorFlow traces into one graph.

`mirrored_run`, which TensorFlow's strategy calls, traces a step once for each
of the strategy's `worker_devices`, all in one graph, and synchronizes them
where the step calls `merge_call`.
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import ps_values
from tensorflow.python.distribute import values
from tensorflow.python.distribute import values_util


class Batches(values.PerReplica):
  """A batch for each replica, distributed by `Strategy.run`.

  Args:
    batches: by replica.
    sizes: the number of examples of each, if replicas are weighted by it.
  """

  def __init__(
    self, batches: Sequence[Any], sizes: Sequence[Any] | None = None
  ) -> None:
    super().__init__(tuple(batches))
    self.sizes = sizes


def batches_among(args: Any) -> values.PerReplica | None:
  """Returns the first argument of a step that has a value per replica."""
  found = [
    value
    for value in tf.nest.flatten(args)
    if isinstance(value, values.PerReplica)
  ]
  return found[0] if found else None


def current() -> int:
  """Returns the index of the replica being traced; 0 outside of any."""
  # The public `replica_id_in_sync_group` is a tensor in functions.
  return int(values_util.get_current_replica_id_as_int() or 0)


def of_each(value: Any, number: int) -> list[Any]:
  """Returns a value of each replica, which may be the same for all."""
  if isinstance(value, values.DistributedValues):
    return list(value.values)
  return [value] * number


def built(dataset: Any) -> Any:
  """Returns a distributed dataset, built, so that it can be iterated over.

  TensorFlow's strategy leaves building it to a coordinator, on each worker.
  """
  if not dataset._built:
    dataset.build()
  return dataset


def aggregating(
  strategy: Any, make: Callable[..., Any], aggregation: Any
) -> Callable[..., Any]:
  """Returns a variable creator for steps of several replicas.

  The values that replicas assign to such a variable are aggregated and assigned
  once. TensorFlow's strategy makes these where a worker has several GPUs.

  Args:
    strategy: whose variables they are.
    make: the next variable creator.
    aggregation: a `tf.VariableAggregation`.
  """

  def create(**kwargs: Any) -> Any:
    variable = ps_values.CachingVariable(make(**kwargs))
    return ps_values.AggregatingVariable(strategy, variable, aggregation)

  return create
