"""Accumulation of gradients by Keras' optimizers, on the ps.

It serves `gradient_accumulation_steps` of `keras.optimizers.Optimizer`. Several
`steps` of an update policy are combined in `tfps.updates.accumulation` instead.
"""

from collections.abc import Callable
from collections.abc import Sequence
import functools
from typing import Any

import keras
import tensorflow as tf

from tfps.keras import shards
from tfps.updates import apply as apply_lib
from tfps.updates import ps_lock
from tfps.variables import sharded


def apply_gradients(
  own: Callable[..., Any],
  optimizer: Any,
  gradients: Sequence[Any],
  trainable_variables: Sequence[Any],
) -> None:
  """Accumulates gradients, and applies them every few steps.

  All workers add to accumulators on the ps. One takes their values for an
  update; additions in the meantime count for the next one.
  """
  steps = optimizer.gradient_accumulation_steps
  if not steps:
    own(gradients, trainable_variables)
    return
  accumulators = [
    shards.value(
      optimizer._accumulated_gradients[optimizer._get_variable_index(v)]
    )
    for v in trainable_variables
  ]

  def apply() -> None:
    taken = [
      (tf.convert_to_tensor(gradient) + accumulated) / steps
      for gradient, accumulated in zip(
        gradients, _take(accumulators), strict=True
      )
    ]
    optimizer._apply_weight_decay(trainable_variables)
    optimizer._backend_update_step(
      optimizer._clip_gradients(taken),
      trainable_variables,
      optimizer.learning_rate,
    )

  def accumulate() -> None:
    for variable, gradient in zip(accumulators, gradients, strict=True):
      _add(variable, gradient)

  is_time = (optimizer._iterations + 1) % steps == 0
  keras.ops.cond(is_time, apply, accumulate)
  _average(optimizer)


def _average(optimizer: Any) -> None:
  # The replaced method of Keras does so, too.
  if not optimizer.use_ema:
    return
  variables = optimizer._trainable_variables
  optimizer._update_model_variables_moving_average(variables)
  if optimizer.ema_overwrite_frequency:
    keras.ops.cond(
      (optimizer.iterations + 1) % optimizer.ema_overwrite_frequency == 0,
      lambda: optimizer._overwrite_model_variables_with_average_value(
        variables
      ),
      lambda: None,
    )


def _take(accumulators: Sequence[Any]) -> list[tf.Tensor]:
  """Returns the accumulated gradients, and subtracts them."""
  taken: dict[int, tf.Tensor] = {}

  def take(shard: Any) -> list[Any]:
    value = taken[id(shard)] = apply_lib.read(shard)
    handle = shard.handle
    return [tf.raw_ops.AssignSubVariableOp(resource=handle, value=value)]

  ps_lock.run(
    ps_lock.Job(shard, functools.partial(take, shard))
    for variable in accumulators
    for shard in shards.of(variable)
  )
  return [
    tf.concat([taken[id(shard)] for shard in shards.of(variable)], axis=0)
    if isinstance(variable, sharded.ShardedVariable)
    else taken[id(variable)]
    for variable in accumulators
  ]


def _add(variable: Any, gradient: Any) -> None:
  gradient = apply_lib.with_distinct_rows(gradient)
  for shard, own in zip(
    shards.of(variable), shards.split(variable, gradient), strict=True
  ):
    # A single operation in both cases, so that it is atomic.
    if isinstance(own, tf.IndexedSlices):
      shard.scatter_nd_add(own.indices[:, tf.newaxis], own.values)
    else:
      shard.assign_add(own)
