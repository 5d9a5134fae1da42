"""Methods of Keras' `LossScaleOptimizer` for a scale that workers share.

Keras compares the number of finite steps with the one at which the scale grows,
and workers that count at the same time step over it: the scale would never grow
again. Here the ps counts, each step once.

See `tfps.keras.optimizers` about these methods.
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
import weakref

import keras
import tensorflow as tf

from tfps.updates import apply as apply_lib
from tfps.updates import ps_lock

Own = Callable[..., Any]  # Keras' own method
Apply = Callable[[Sequence[Any], Sequence[Any]], None]

# By optimizer, the scale of the last loss, whose gradients are not applied yet.
_scales: weakref.WeakKeyDictionary[Any, tf.Tensor] = weakref.WeakKeyDictionary()

# By optimizer, what applies its unscaled gradients instead of the inner one.
_appliers: weakref.WeakKeyDictionary[Any, Apply] = weakref.WeakKeyDictionary()


def scale_loss(own: Own, optimizer: Any, loss: Any) -> Any:
  """Returns the scaled loss, and keeps the scale for its gradients."""
  if not optimizer.built:
    if not tf.executing_eagerly():  # its first scale would stay for ever
      raise ValueError(
        f'{optimizer.name}: the loss is scaled in a tf.function before the '
        'optimizer is built. Call optimizer.build(trainable_variables) first.'
      )
    return own(loss)
  scale = _scales[optimizer] = tf.identity(optimizer.dynamic_scale.value)
  return keras.ops.multiply(loss, scale)


def check_finite(own: Own, optimizer: Any, grads: Sequence[Any]) -> Any:
  """Returns whether gradients are finite; of tables, only the rows they have.

  Keras makes them dense, as large as the table.
  """
  del optimizer
  return own(
    [
      grad.values if isinstance(grad, tf.IndexedSlices) else grad
      for grad in grads
    ]
  )


def apply_finite(
  own: Own,
  optimizer: Any,
  grads: Sequence[Any],
  trainable_variables: Sequence[Any] | None,
) -> None:
  """Applies gradients that are finite, and counts them.

  They are divided by the scale of their own loss; another worker may have
  changed the variable since.
  """
  del own
  variables = trainable_variables or optimizer._trainable_variables
  grads = [
    gradient if optimizer._overwrite_variable_with_gradient(variable) else new
    for gradient, new, variable in zip(
      grads, unscaled(optimizer, grads), variables, strict=True
    )
  ]
  _scales.pop(optimizer, None)
  apply = _appliers.get(optimizer, optimizer.inner_optimizer.apply)
  apply(grads, trainable_variables)
  _multiply_scale(optimizer, tf.where(_count(optimizer), 2.0, 1.0))


def skip_step(own: Own, optimizer: Any) -> None:
  """Halves the scale after gradients that are not finite."""
  del own
  _scales.pop(optimizer, None)
  counter = optimizer.step_counter.value

  def reset() -> list[Any]:
    return [apply_lib.write(counter, tf.zeros([], counter.dtype))]

  ps_lock.run([ps_lock.Job(counter, reset)])
  _multiply_scale(optimizer, 0.5)


def apply_unscaled(
  own: Own,
  optimizer: Any,
  grads: Sequence[Any],
  variables: Sequence[Any],
  apply: Apply,
) -> None:
  """Applies gradients by a function in the place of their optimizer.

  The function gets them without the scale of the loss. With a dynamic scale, it
  gets only finite ones, and the scale changes as by the optimizer itself.

  Args:
    own: the optimizer's own method to apply gradients.
    optimizer: any Keras optimizer.
    grads: scaled gradients; None for a variable without one.
    variables: their variables.
    apply: function of unscaled gradients and their variables.
  """
  if not _is_dynamic(optimizer):
    apply(unscaled(optimizer, grads), variables)
    return
  _appliers[optimizer] = apply
  try:
    own(grads, variables)
  finally:
    del _appliers[optimizer]


def unscaled(optimizer: Any, grads: Sequence[Any]) -> list[Any]:
  """Returns gradients divided by the scale of their optimizer's loss, if any.

  Args:
    optimizer: any Keras optimizer.
    grads: scaled gradients; None for a variable without one.
  """
  scale = optimizer.loss_scale_factor
  if _is_dynamic(optimizer):
    scale = _scale_of_loss(optimizer)
  if scale is None:
    return list(grads)
  return [
    None if grad is None else keras.ops.divide(grad, scale) for grad in grads
  ]


def finite(optimizer: Any, grads: Sequence[Any]) -> list[Any]:
  """Returns zeros for gradients that a dynamic scale has made overflow.

  Those of a step are all zeros if one of them is not finite.
  """
  if not _is_dynamic(optimizer):
    return list(grads)
  is_finite = optimizer.check_finite(grads)
  return [
    None if grad is None else _or_zeros(is_finite, grad) for grad in grads
  ]


def _or_zeros(condition: Any, gradient: Any) -> Any:
  if not isinstance(gradient, tf.IndexedSlices):
    return tf.where(condition, gradient, tf.zeros_like(gradient))
  values = _or_zeros(condition, gradient.values)
  return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)


def _is_dynamic(optimizer: Any) -> bool:
  return isinstance(optimizer, keras.optimizers.LossScaleOptimizer)


def _scale_of_loss(optimizer: Any) -> Any:
  """Returns the scale of the loss whose gradients are at hand."""
  scale = _scales.get(optimizer)
  if scale is None or not _is_usable(scale):
    return optimizer.dynamic_scale  # the program has scaled the loss itself
  return scale


def _is_usable(tensor: tf.Tensor) -> bool:
  """Returns whether a tensor is one of the graph that is being traced."""
  if tf.executing_eagerly():
    return hasattr(tensor, 'numpy')
  graph = tf.compat.v1.get_default_graph()
  while graph is not None:
    if getattr(tensor, 'graph', None) is graph:
      return True
    graph = getattr(graph, 'outer_graph', None)
  return False


def _count(optimizer: Any) -> tf.Tensor:
  """Counts a finite step; returns whether the scale is to grow."""
  counter = optimizer.step_counter.value
  grows: list[tf.Tensor] = []

  def count() -> list[Any]:
    number = apply_lib.read(counter) + 1
    grows.append(number >= optimizer.dynamic_growth_steps)
    number = tf.where(grows[0], tf.zeros_like(number), number)
    return [apply_lib.write(counter, number)]

  ps_lock.run([ps_lock.Job(counter, count)])
  return grows[0]


def _multiply_scale(optimizer: Any, factor: tf.Tensor | float) -> None:
  scale = optimizer.dynamic_scale.value

  def multiply(factor: tf.Tensor) -> list[Any]:
    return [apply_lib.write(scale, apply_lib.read(scale) * factor)]

  ps_lock.run([ps_lock.Job(scale, multiply, [tf.convert_to_tensor(factor)])])
