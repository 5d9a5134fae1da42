"""Methods of Keras' optimizers that update variables on the ps.

Keras' own optimizers are computed by rules of `tfps.updates`: their update of a
variable is atomic, and slots never leave the ps. Other optimizers compute by
their own `update_step`, on the ps as well unless the variable is sharded.

These methods replace those of `keras.Optimizer`, see
`_compat.keras_optimizers`; their first argument `own` is the replaced method.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import functools
from typing import Any

import keras
import tensorflow as tf

from tfps.keras import gradient_accumulation
from tfps.keras import loss_scaling
from tfps.keras import optimizer_rules
from tfps.keras import replica_apply
from tfps.keras import shards
from tfps.keras import sync_apply
from tfps.keras import table_slots
from tfps.keras import update_ages
from tfps.updates import accumulation
from tfps.updates import adam_rules
from tfps.updates import apply as apply_lib
from tfps.updates import policies
from tfps.updates import ps_lock
from tfps.updates import rules
from tfps.variables import growing
from tfps.variables import sharded
from tfps.variables import step_replicas

Own = Callable[..., Any]  # Keras' own method

apply_gradients = gradient_accumulation.apply_gradients
apply_finite = loss_scaling.apply_finite
check_finite = loss_scaling.check_finite
scale_loss = loss_scaling.scale_loss
skip_step = loss_scaling.skip_step
save_own_variables = table_slots.save
load_own_variables = table_slots.load
slot_made = table_slots.begin_slot


def lazy(optimizer: Any) -> Any:
  """Makes an optimizer skip the rows that a batch does not look up.

  By default an optimizer changes all rows of an embedding in each step, because
  their momentum continues and decays; the time grows with the table. A lazy
  optimizer leaves rows without a gradient unchanged, with their slots and
  without weight decay. It is faster, but computes something else; see
  `LazyAdam` of TensorFlow Addons, or `torch.optim.SparseAdam`.

  Dense gradients are not affected.

  Args:
    optimizer: an optimizer of one of Keras' own classes.

  Returns:
    The same optimizer. Its config does not contain that it is lazy.

  Raises:
    ValueError: the optimizer is of another class, or wraps one.
  """
  if not optimizer_rules.is_served(optimizer):
    raise ValueError(
      f'lazy: {optimizer} is not one of {optimizer_rules.names()}, and only '
      'these can be lazy. To wrap one, make it lazy first.'
    )
  optimizer.tfps_lazy = True
  return optimizer


def apply(
  own: Own,
  optimizer: Any,
  grads: Sequence[Any],
  trainable_variables: Iterable[Any] | None = None,
) -> None:
  """Applies gradients after combining those that make one update.

  Depending on the strategy and its update policy, these are the gradients of a
  step's replicas, of all workers, or of several steps.

  Args:
    own: Keras' own method.
    optimizer: the optimizer.
    grads: gradients of the variables; None for a variable without one.
    trainable_variables: the variables; by default the optimizer's.
  """
  strategy = optimizer._distribution_strategy
  if trainable_variables is not None:
    trainable_variables = list(trainable_variables)
    shards.build(optimizer, trainable_variables)
  grads = shards.lean(optimizer, grads, trainable_variables)
  if step_replicas.is_replica_traced(strategy):
    variables = shards.variables_of(optimizer, trainable_variables)
    replica_apply.merge(
      strategy,
      variables,
      grads,
      lambda merged: apply(own, optimizer, merged, variables),
    )
    return
  if sync_apply.is_asked_for(optimizer):
    sync_apply.apply(own, optimizer, grads, trainable_variables)
    return
  steps = accumulation.steps_to_gather()
  if steps is None:
    own(grads, trainable_variables)
    return
  if trainable_variables is None:
    trainable_variables = optimizer._trainable_variables
  variables = list(trainable_variables)
  gathered = accumulation.Accumulation(steps, optimizer)
  gathered.add(grads, variables)
  if not gathered.is_complete:
    _descend(gathered, optimizer, variables, grads)
    return
  with accumulation.applying(steps):
    if steps.policy.outer is None:
      own(gathered.gradients(variables), variables)
      return
    outer = _outer(optimizer, steps.policy, variables)

    def apply_outer(changes: Sequence[Any], variables: Sequence[Any]) -> None:
      outer.apply(changes, variables)
      optimizer.iterations.assign_add(1)

    loss_scaling.apply_unscaled(
      own, optimizer, gathered.changes(variables), variables, apply_outer
    )


def _outer(
  optimizer: Any, policy: policies.LocalSteps, variables: Sequence[Any]
) -> Any:
  """Returns the optimizer of outer updates, with slots of its own."""
  if getattr(optimizer, 'outer_optimizer', None) is None:
    with tf.init_scope():
      outer = policy.make_outer()
      outer.build(variables)
    # An attribute, so that checkpoints of the inner optimizer contain it.
    optimizer.outer_optimizer = outer
  return optimizer.outer_optimizer


def _descend(
  gathered: accumulation.Accumulation,
  optimizer: Any,
  variables: Sequence[Any],
  grads: Sequence[Any],
) -> None:
  grads = loss_scaling.finite(optimizer, grads)
  grads = loss_scaling.unscaled(optimizer, grads)
  for variable, gradient in zip(variables, grads, strict=True):
    if gradient is not None:
      value = shards.value(variable)
      for shard, own in zip(
        shards.of(value), shards.split(value, gradient), strict=True
      ):
        gathered.descend(shard, own)


def sum_gradients(
  own: Own, optimizer: Any, grads_and_vars: Sequence[tuple[Any, Any]]
) -> Sequence[tuple[Any, Any]]:
  """Returns gradients unchanged, because replicas' gradients are merged before.

  Keras' own sum makes each gradient wait for all others, so that the first ones
  could not be sent while the last are computed.
  """
  del own, optimizer
  return grads_and_vars


def clip_gradients(
  own: Own, optimizer: Any, grads: Sequence[Any]
) -> Sequence[Any]:
  """Clips gradients; those of tables that grow by the rows that they have.

  Keras makes them dense, which is impossible without a number of rows. What is
  left out is zero, so that norms are the same.
  """
  grads = [
    apply_lib.with_distinct_rows(grad) if _is_of_any_number(grad) else grad
    for grad in grads
  ]
  clipped = own(
    [grad.values if _is_of_any_number(grad) else grad for grad in grads]
  )
  return [
    tf.IndexedSlices(values, grad.indices)
    if _is_of_any_number(grad)
    else values
    for values, grad in zip(clipped, grads, strict=True)
  ]


def _is_of_any_number(gradient: Any) -> bool:
  """Returns whether a gradient has rows, of an unknown number of all rows."""
  return isinstance(gradient, tf.IndexedSlices) and gradient.dense_shape is None


def update(
  own: Own,
  optimizer: Any,
  distribution: Any,
  grads_and_vars: Sequence[tuple[Any, Any]],
  learning_rate: Any,
) -> None:
  """Updates variables and slots.

  Args:
    own: Keras' own method.
    optimizer: the optimizer.
    distribution: its strategy.
    grads_and_vars: gradients with their variables.
    learning_rate: the learning rate, a scalar.

  Raises:
    ValueError: it cannot update a table that grows, or divide the learning rate
      by the staleness.
  """
  served = optimizer_rules.serve(optimizer)
  if served is not None:
    updates = [
      update
      for gradient, variable in grads_and_vars
      for update in _updates(optimizer, served, gradient, variable)
    ]
    step = _step(optimizer, learning_rate, counts=served.rule.counts)
    apply_lib.apply(updates, step, update_ages.of(optimizer))
    return
  update_ages.count(optimizer, grads_and_vars)
  for gradient, variable in grads_and_vars:
    if growing.grows(shards.value(variable)):
      raise ValueError(
        f'{optimizer.name}: {type(optimizer).__name__} cannot update '
        f'{variable.name}, rows of a table that grows, which only '
        f'{optimizer_rules.names()} can. Train the table by one of these.'
      )
    gradient = apply_lib.with_distinct_rows(gradient)
    if isinstance(variable, sharded.ShardedVariable):
      # `update_step` may combine rows, so it gets the whole variable.
      optimizer.update_step(gradient, variable, learning_rate)
    else:
      own(distribution, [(gradient, variable)], learning_rate)


def update_by_nadam(own: Own, optimizer: Any, *args: Any) -> None:
  """Multiplies the product of momenta by the step's, then updates."""
  del own
  product = optimizer._u_product.value

  def multiply(count: tf.Tensor) -> list[Any]:
    factor = adam_rules.momentum_factor(tf.cast(count, product.dtype))
    value = apply_lib.read(product) * optimizer.beta_1 * factor
    return [apply_lib.write(product, value)]

  ps_lock.run([ps_lock.Job(product, multiply, [_count(optimizer)])])
  keras.optimizers.Optimizer._backend_update_step(optimizer, *args)


def decay_weights(own: Own, optimizer: Any, variables: Sequence[Any]) -> None:
  """Applies weight decay, unless the optimizer's rule includes it."""
  del own
  if optimizer.weight_decay is None or optimizer_rules.serve(optimizer):
    return
  rate = _here(optimizer.learning_rate)

  def decay(shard: Any, rate: tf.Tensor) -> list[Any]:
    rate = tf.cast(rate, shard.dtype)
    return apply_lib.decay(shard, optimizer.weight_decay, rate)

  ps_lock.run(
    ps_lock.Job(shard, functools.partial(decay, shard), [rate])
    for variable in map(shards.value, variables)
    if optimizer._use_weight_decay(variable)
    for shard in shards.of(variable)
  )


def update_averages(
  own: Own, optimizer: Any, trainable_variables: Sequence[Any]
) -> None:
  """Updates the moving averages of weights."""
  del own
  if not optimizer.use_ema:
    return

  def follow(shard: Any, average: Any, is_later: tf.Tensor) -> list[Any]:
    momentum = tf.cast(is_later, shard.dtype) * optimizer.ema_momentum
    kept = momentum * apply_lib.read(average)
    value = kept + (1 - momentum) * apply_lib.read(shard)
    return [apply_lib.write(average, value)]

  is_later = tf.not_equal(_here(optimizer.iterations), 0)
  ps_lock.run(
    ps_lock.Job(shard, functools.partial(follow, shard, average), [is_later])
    for shard, average in _averaged(optimizer, trainable_variables)
  )


def use_averages(
  own: Own, optimizer: Any, trainable_variables: Sequence[Any]
) -> None:
  """Overwrites weights with their moving averages."""
  del own

  def overwrite(shard: Any, average: Any) -> list[Any]:
    return [apply_lib.write(shard, apply_lib.read(average))]

  ps_lock.run(
    ps_lock.Job(shard, functools.partial(overwrite, shard, average))
    for shard, average in _averaged(optimizer, trainable_variables)
  )


def _updates(
  optimizer: Any, served: optimizer_rules.Served, gradient: Any, variable: Any
) -> Iterator[apply_lib.Update]:
  index = optimizer._get_variable_index(variable)
  slots = [
    shards.of(shards.value(variables[index])) for variables in served.slots
  ]
  decay = None
  if optimizer.weight_decay and optimizer._use_weight_decay(variable):
    decay = optimizer.weight_decay
  for shard, own, *own_slots in zip(
    shards.of(variable), shards.split(variable, gradient), *slots, strict=True
  ):
    yield apply_lib.Update(
      served.rule,
      shard,
      own_slots,
      own,
      decay=decay,
      lazy=getattr(optimizer, 'tfps_lazy', False),
    )


def _step(optimizer: Any, learning_rate: Any, *, counts: bool) -> rules.Step:
  if not counts:
    return rules.Step(_here(learning_rate), 0)
  product = getattr(optimizer, '_u_product', None)
  return rules.Step(
    _here(learning_rate),
    _count(optimizer),
    1.0 if product is None else _here(product),
  )


def _count(optimizer: Any) -> tf.Tensor:
  return _here(optimizer.iterations) + 1


def _here(value: Any) -> tf.Tensor:
  """Reads a number once on the worker, which sends it to each ps."""
  return tf.identity(tf.convert_to_tensor(value))


def _averaged(
  optimizer: Any, trainable_variables: Sequence[Any]
) -> Iterator[tuple[Any, Any]]:
  """Yields variables or shards, each with its moving average."""
  for variable, average in zip(
    trainable_variables, optimizer._model_variables_moving_average, strict=True
  ):
    if average is not None:
      yield from zip(
        shards.of(shards.value(variable)),
        shards.of(shards.value(average)),
        strict=True,
      )
