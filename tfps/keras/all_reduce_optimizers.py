"""Methods of Keras' optimizers for workers that add up gradients.

Gradients are added up before anything else is done with them, so that clipping,
the check of a scaled loss and accumulation see what a single process would.
Then each worker updates its own variables by Keras' own methods.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps.keras import optimizer_rules
from tfps.keras import optimizers
from tfps.keras import shards
from tfps.updates import apply as apply_lib

Own = Callable[..., Any]  # Keras' own method

sum_gradients = optimizers.sum_gradients  # `apply` has added them up


def apply(
  own: Own,
  optimizer: Any,
  grads: Sequence[Any],
  trainable_variables: Iterable[Any] | None = None,
) -> None:
  """Applies the sums of all workers' gradients.

  Args:
    own: Keras' own method.
    optimizer: the optimizer.
    grads: this worker's gradients; None for a variable without one.
    trainable_variables: their variables; by default the optimizer's.
  """
  strategy = optimizer._distribution_strategy
  if (
    strategy.gradients.is_applying
    or tf.distribute.get_replica_context() is None
  ):
    own(grads, trainable_variables)
    return
  variables = shards.variables_of(optimizer, trainable_variables)
  grads = [apply_lib.with_distinct_rows(gradient) for gradient in grads]
  sums = strategy.gradients.of(grads)
  arrived = [
    total.values if isinstance(total, tf.IndexedSlices) else total
    for total in sums
    if total is not None
  ]
  # What does not depend on gradients, such as a count, waits for them, too.
  with (
    strategy.gradients.applying(),
    tf.control_dependencies([_after(arrived)]),
  ):
    own(list(map(_with_shape, sums, variables)), variables)


def _after(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
  """Returns a tensor that is there once all of others are."""
  with tf.control_dependencies(tensors):
    return tf.constant(0)


def _with_shape(gradient: Any, variable: Any) -> Any:
  """Returns a gradient of distinct rows with its shape, which Keras needs."""
  if not isinstance(gradient, tf.IndexedSlices):
    return gradient
  distinct = apply_lib.with_distinct_rows(gradient)
  shape = tf.constant(tuple(variable.shape), distinct.indices.dtype)
  return tf.IndexedSlices(distinct.values, distinct.indices, shape)


def update(
  own: Own,
  optimizer: Any,
  distribution: Any,
  grads_and_vars: Sequence[tuple[Any, Any]],
  learning_rate: Any,
) -> None:
  """Updates variables, and of tables the rows alone where that is the same.

  Keras computes new values of whole tables from gradients of a few rows.

  Args:
    own: Keras' own method.
    optimizer: the optimizer.
    distribution: its strategy.
    grads_and_vars: gradients with their variables.
    learning_rate: the learning rate, a scalar.
  """
  dense: list[tuple[Any, Any]] = []
  rows: list[tuple[Any, Any]] = []
  for pair in grads_and_vars:
    (rows if isinstance(pair[0], tf.IndexedSlices) else dense).append(pair)
  is_served = optimizer_rules.serve(optimizer) is not None
  if optimizer.weight_decay or not is_served:
    dense, rows = list(grads_and_vars), []
  if rows:
    optimizers.update(own, optimizer, distribution, rows, learning_rate)
  if dense:
    own(distribution, dense, learning_rate)


def _unchanged(own: Own, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
  """Calls Keras' own method: each worker has all variables."""
  del optimizer
  return own(*args, **kwargs)


apply_finite = _unchanged
apply_gradients = _unchanged
check_finite = _unchanged
clip_gradients = _unchanged
decay_weights = _unchanged
load_own_variables = _unchanged
save_own_variables = _unchanged
scale_loss = _unchanged
skip_step = _unchanged
update_averages = _unchanged
update_by_nadam = _unchanged
use_averages = _unchanged
