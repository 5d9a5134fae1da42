"""Methods of Keras' optimizers for variables on both workers and ps.

Each worker applies the mean of all gradients to the variables that it holds.
Variables on the ps are updated by one worker, as with `updates.Sync()`, by the
methods of `tfps.keras.optimizers`.
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

apply_finite = optimizers.apply_finite
apply_gradients = optimizers.apply_gradients
check_finite = optimizers.check_finite
clip_gradients = optimizers.clip_gradients
load_own_variables = optimizers.load_own_variables
save_own_variables = optimizers.save_own_variables
scale_loss = optimizers.scale_loss
skip_step = optimizers.skip_step
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
  """Applies gradients to this worker's variables and to those on the ps.

  Args:
    own: Keras' own method.
    optimizer: the optimizer.
    grads: this worker's gradients; None for a variable without one.
    trainable_variables: their variables; by default the optimizer's.

  Raises:
    ValueError: the optimizer needs the gradients of all variables at once, or
      those of several steps.
  """
  if not sync_apply.is_asked_for(optimizer):
    own(grads, trainable_variables)
    return
  check(optimizer)
  strategy = optimizer._distribution_strategy
  if not optimizer.built:
    _check_is_fresh(optimizer, strategy)
  variables = shards.variables_of(optimizer, trainable_variables)
  grads = shards.lean(optimizer, grads, variables)
  here, there = _divide(strategy, zip(grads, variables, strict=True))
  sync_step: Any = sync_apply.steps_of(optimizer).sync_step
  first = writes.num_operations()
  with tf.control_dependencies(sync_step.written):
    means = strategy.begin_means([tf.convert_to_tensor(g) for g, _ in here])
  count = optimizer.iterations.value
  before = tf.identity(count)
  sync_apply.apply(own, optimizer, [g for g, _ in there], [v for _, v in there])
  count.assign(before)  # the worker that updated the ps has counted
  with tf.control_dependencies([step_sync.after_writes(first, before)]):
    found = means.result()
  begun = strategy.begin_change(found)
  with tf.control_dependencies(begun):  # counts after the update
    if here:
      own(found, [variable for _, variable in here])
    else:
      count.assign_add(tf.ones_like(before))
  sync_step.note_written(first, before)


def check(optimizer: Any) -> None:
  """Checks that workers and ps can each update variables with an optimizer.

  Raises:
    ValueError: they cannot.
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
  """Checks that restored training has not left slots on other workers behind.

  Raises:
    ValueError: the optimizer has no slots although training was restored.
  """
  with tf.init_scope():
    step = int(strategy.global_step)
  if step:
    raise ValueError(
      f'HybridStrategy: {optimizer.name} has no slots yet at step {step}, from '
      'which training continues, and the saved ones would be restored by the '
      'chief only. Make them in the scope, before train: '
      'optimizer.build(model.trainable_variables).'
    )


def update(
  own: Own,
  optimizer: Any,
  distribution: Any,
  grads_and_vars: Sequence[tuple[Any, Any]],
  learning_rate: Any,
) -> None:
  """Updates variables and slots on this worker and on the ps.

  Args:
    own: Keras' own method.
    optimizer: the optimizer.
    distribution: its strategy.
    grads_and_vars: gradients with their variables.
    learning_rate: the learning rate, a scalar.
  """
  here, there = _divide(distribution, grads_and_vars)
  if here:
    own(distribution, here, learning_rate)
  if there:
    optimizers.update(own, optimizer, distribution, there, learning_rate)


def decay_weights(own: Own, optimizer: Any, variables: Sequence[Any]) -> None:
  """Applies weight decay on this worker and on the ps."""
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
  """Returns the pairs of this worker's variables, and those on the ps."""
  here: list[tuple[Any, Any]] = []
  there: list[tuple[Any, Any]] = []
  for gradient, variable in grads_and_vars:
    if gradient is not None:
      is_held = strategy.is_held(shards.value(variable))
      (here if is_held else there).append((gradient, variable))
  return here, there
