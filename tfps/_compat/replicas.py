"""The replicas of a step, which TensorFlow traces into one graph.

`mirrored_run`, which TensorFlow's strategy calls, traces a step once for each
of the strategy's `worker_devices`, all in one graph, and has them meet where
the step calls `merge_call`.
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import ps_values
from tensorflow.python.distribute import values
from tensorflow.python.distribute import values_util


class Batches(values.PerReplica):
  """A batch for each replica; `Strategy.run` gives each its own.

  Args:
    batches: by replica.
    sizes: how many examples each has, if that is to make a difference.
  """

  def __init__(
    self, batches: Sequence[Any], sizes: Sequence[Any] | None = None
  ) -> None:
    super().__init__(tuple(batches))
    self.sizes = sizes


def batches_among(args: Any) -> values.PerReplica | None:
  """The first of the arguments of a step that replicas have one each of."""
  found = [
    value
    for value in tf.nest.flatten(args)
    if isinstance(value, values.PerReplica)
  ]
  return found[0] if found else None


def current() -> int:
  """The number of the replica that is being traced, or 0 outside of any."""
  # The public `replica_id_in_sync_group` is a tensor in functions.
  return int(values_util.get_current_replica_id_as_int() or 0)


def of_each(value: Any, number: int) -> list[Any]:
  """What each replica has for a value, which may be the same for all."""
  if isinstance(value, values.DistributedValues):
    return list(value.values)
  return [value] * number


def built(dataset: Any) -> Any:
  """A distributed dataset that can be iterated over outside of functions.

  TensorFlow's strategy leaves it to a coordinator to build it on each worker.
  """
  if not dataset._built:
    dataset.build()
  return dataset


def aggregating(
  strategy: Any, make: Callable[..., Any], aggregation: Any
) -> Callable[..., Any]:
  """A variable creator for steps of several replicas.

  What the replicas assign to such a variable is made one, by the aggregation,
  and assigned once. TensorFlow's strategy makes these where a worker has
  several GPUs.
  """

  def create(**kwargs: Any) -> Any:
    variable = ps_values.CachingVariable(make(**kwargs))
    return ps_values.AggregatingVariable(strategy, variable, aggregation)

  return create
