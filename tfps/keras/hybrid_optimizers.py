"""Keras' optimizers, whose work workers and ps share.

Each worker applies the mean of all gradients to what it holds; of the rest, one
worker has the ps do so, as with `updates.Sync()`. All else is as in
`tfps.keras.optimizers`.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfps._compat import writes
from tfps.keras import optimizers
from tfps.keras import shards
from tfps.keras import sync_apply
from tfps.updates.sync import step_sync

Own = Callable[..., Any]  # Keras' own method

apply_gradients = optimizers.apply_gradients
sum_gradients = optimizers.sum_gradients
update_averages = optimizers.update_averages
update_by_nadam = optimizers.update_by_nadam
use_averages = optimizers.use_averages


def apply(
  own: Own,
  optimizer: Any,
  grads: Sequence[Any],
  trainable_variables: Iterable[Any] | None = None,
) -> None:
  """Applies gradients, of what is here and of what is on the ps.

  Raises:
    ValueError: the optimizer does what takes all gradients, or needs more than
      a step's.
  """
  if not sync_apply.is_asked_for(optimizer):
    own(grads, trainable_variables)
    return
  check(optimizer)
  strategy = optimizer._distribution_strategy
  if not optimizer.built:
    _check_is_fresh(optimizer, strategy)
  variables = shards.variables_of(optimizer, trainable_variables)
  here, there = _divide(strategy, zip(grads, variables, strict=True))
  course: Any = sync_apply.steps_of(optimizer).sync_step
  first = writes.num_operations()
  with tf.control_dependencies(course.written):
    means = strategy.begin_means([tf.convert_to_tensor(g) for g, _ in here])
  count = optimizer.iterations.value
  before = tf.identity(count)
  sync_apply.apply(own, optimizer, [g for g, _ in there], [v for _, v in there])
  count.assign(before)  # who makes the update on the ps has counted it
  with tf.control_dependencies([step_sync.after_writes(first, before)]):
    found = means.result()
  with tf.control_dependencies(found):  # else it would count at once
    if here:
      own(found, [variable for _, variable in here])
    else:
      count.assign_add(tf.ones_like(before))
  course.note_written(first, before)


def check(optimizer: Any) -> None:
  """Makes sure that an optimizer's work can be shared.

  Raises:
    ValueError: it cannot.
  """
  wanted = None
  if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
    wanted = 'scales the loss by what all gradients are'
  elif isinstance(optimizer, keras.optimizers.Nadam):
    wanted = 'has a momentum that all variables share'
  elif optimizer.global_clipnorm is not None:
    wanted = 'clips by the norm of all gradients'
  elif optimizer.use_ema:
    wanted = 'averages weights'
  elif optimizer.gradient_accumulation_steps:
    wanted = 'accumulates gradients'
  if wanted:
    raise ValueError(
      f'HybridStrategy: {optimizer.name} {wanted}, which workers and ps cannot '
      'share. Take another optimizer, or a BetweenGraphStrategy with '
      'updates=Sync().'
    )


def _check_is_fresh(optimizer: Any, strategy: Any) -> None:
  """Makes sure that no slots are missing which only the chief would restore.

  Raises:
    ValueError: training goes on, and they are.
  """
  with tf.init_scope():
    step = int(strategy.global_step)
  if step:
    raise ValueError(
      f'HybridStrategy: {optimizer.name} has no slots yet at step {step}, from '
      'which training goes on, and what was saved of them would reach the '
      'chief alone. Make them in the scope, before train: '
      'optimizer.build(model.trainable_variables).'
    )


def update(
  own: Own,
  optimizer: Any,
  distribution: Any,
  grads_and_vars: Sequence[tuple[Any, Any]],
  learning_rate: Any,
) -> None:
  """Updates variables and slots, here and on the ps."""
  here, there = _divide(distribution, grads_and_vars)
  if here:
    own(distribution, here, learning_rate)
  if there:
    optimizers.update(own, optimizer, distribution, there, learning_rate)


def decay_weights(own: Own, optimizer: Any, variables: Sequence[Any]) -> None:
  """Shrinks the weights, unless that is part of the update."""
  strategy = optimizer._distribution_strategy
  here = [v for v in variables if strategy.is_held(shards.value(v))]
  there = [v for v in variables if not strategy.is_held(shards.value(v))]
  if here:
    own(here)
  if there:
    optimizers.decay_weights(own, optimizer, there)


def _divide(
  strategy: Any, grads_and_vars: Iterable[tuple[Any, Any]]
) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
  """Gradients and variables that are here, and those that are on the ps."""
  here: list[tuple[Any, Any]] = []
  there: list[tuple[Any, Any]] = []
  for gradient, variable in grads_and_vars:
    if gradient is not None:
      is_held = strategy.is_held(shards.value(variable))
      (here if is_held else there).append((gradient, variable))
  return here, there
