"""Applies the summed gradients of a step's replicas once."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps._compat import replicas as compat
from tfps.keras import shards
from tfps.updates.sync import replica_aggregation
from tfps.variables import step_replicas


def merge(
  strategy: tf.distribute.Strategy,
  variables: Sequence[Any],
  gradients: Sequence[Any],
  apply: Callable[[list[Any]], None],
) -> None:
  """Waits during tracing for all replicas of a step; one applies the sums.

  Args:
    strategy: the step's strategy.
    variables: the optimizer's variables.
    gradients: this replica's gradients; None for a variable without one.
    apply: applies the sums, as if there were one replica.

  Raises:
    RuntimeError: the call is within a `tf.function`, a branch or a loop, where
      replicas cannot be merged.
  """
  group = strategy.extended.group

  def apply_merged(_: Any, of_all: list[Any]) -> None:
    own = [compat.of_each(each, len(group.devices)) for each in of_all]
    merged = _merged(strategy, group, variables, own)
    with step_replicas.as_single_replica(strategy):
      apply(merged)

  context = tf.distribute.get_replica_context()
  context.merge_call(
    tf.autograph.experimental.do_not_convert(apply_merged),
    args=(list(gradients),),
  )


def _merged(
  strategy: tf.distribute.Strategy,
  group: step_replicas.Group,
  variables: Sequence[Any],
  gradients: Sequence[Sequence[Any]],
) -> list[Any]:
  """Returns the sums of gradients that are given by variable and replica."""
  if not step_replicas.of(strategy).span_workers:
    return [
      None if own[0] is None else replica_aggregation.on_worker(group, own)
      for own in gradients
    ]
  pieces = []
  for i, device in enumerate(group.devices):
    with tf.device(device):
      pieces.append(shards.pieces(variables, [own[i] for own in gradients]))
  first = [own[0] for own in gradients]
  merged = replica_aggregation.on_ps(
    group, pieces, getattr(strategy, 'hosts', {})
  )
  return shards.whole(variables, first, merged)
