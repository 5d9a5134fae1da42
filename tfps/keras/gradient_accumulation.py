"""Work of Keras' optimizers that is due every few steps of all workers.

These are `gradient_accumulation_steps` and `ema_overwrite_frequency` of
`keras.optimizers.Optimizer`. Several `steps` of an update policy are combined
in `tfps.updates.accumulation` instead.
"""

from collections.abc import Callable
from collections.abc import Sequence
import functools
from typing import Any

import keras
import tensorflow as tf

from tfps.keras import shards
from tfps.keras import step_numbers
from tfps.updates import apply as apply_lib
from tfps.updates import ps_lock
from tfps.variables import growing
from tfps.variables import sharded


def apply_gradients(
  own: Callable[..., Any],
  optimizer: Any,
  gradients: Sequence[Any],
  trainable_variables: Sequence[Any],
) -> None:
  """Applies gradients, or accumulates them and applies them every few steps.

  All workers add to accumulators on the ps. One takes their values for an
  update; additions in the meantime count for the next one.

  Raises:
    ValueError: a table that grows is to be averaged or accumulated.
  """
  _check_tables(optimizer, trainable_variables)
  if not optimizer.gradient_accumulation_steps and not (
    optimizer.use_ema and optimizer.ema_overwrite_frequency
  ):
    own(gradients, trainable_variables)
    return
  number = step_numbers.draw(optimizer)
  if optimizer.gradient_accumulation_steps:
    _accumulate(optimizer, number, gradients, trainable_variables)
    number //= optimizer.gradient_accumulation_steps
  else:
    _update(optimizer, gradients, trainable_variables)
  _average(optimizer, number)


def _check_tables(optimizer: Any, variables: Sequence[Any]) -> None:
  names = [
    variable.name
    for variable in variables
    if growing.grows(shards.value(variable))
  ]
  for setting in ('use_ema', 'gradient_accumulation_steps'):
    if names and getattr(optimizer, setting):
      raise ValueError(
        f'{optimizer.name}: {setting} does not work with {", ".join(names)}, '
        'rows of tables that grow. Leave it out; tfps.updates.Accumulate '
        'accumulates gradients of tables, too.'
      )


def _update(
  optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]
) -> None:
  # In the order of the replaced method of Keras.
  clipped = optimizer._clip_gradients(gradients)
  optimizer._apply_weight_decay(variables)
  optimizer._backend_update_step(clipped, variables, optimizer.learning_rate)


def _accumulate(
  optimizer: Any,
  number: tf.Tensor,
  gradients: Sequence[Any],
  trainable_variables: Sequence[Any],
) -> None:
  steps = optimizer.gradient_accumulation_steps
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
    _update(optimizer, taken, trainable_variables)

  def accumulate() -> None:
    for variable, gradient in zip(accumulators, gradients, strict=True):
      _add(variable, gradient)

  keras.ops.cond(step_numbers.is_last_of(number, steps), apply, accumulate)


def _average(optimizer: Any, number: tf.Tensor) -> None:
  # The replaced method of Keras does so, too.
  if not optimizer.use_ema:
    return
  variables = optimizer._trainable_variables
  optimizer._update_model_variables_moving_average(variables)
  if optimizer.ema_overwrite_frequency:
    keras.ops.cond(
      step_numbers.is_last_of(number, optimizer.ema_overwrite_frequency),
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
