"""Shards of Keras' variables, and their gradients."""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
from typing import Any

import keras
import tensorflow as tf

from tfps._compat import reads
from tfps.updates.sync import aggregation
from tfps.variables import sharded
from tfps.wire import step_transfers as step_transfers_lib
from tfps.wire import table_gradients


def value(variable: Any) -> Any:
  """Returns the `tf.Variable` or `ShardedVariable` of a variable."""
  return variable.value if isinstance(variable, keras.Variable) else variable


def of(variable: Any) -> Sequence[Any]:
  """Returns the shards of such a variable; itself if it has none."""
  is_sharded = isinstance(variable, sharded.ShardedVariable)
  return variable.variables if is_sharded else [variable]


def split(variable: Any, gradient: Any) -> list[Any]:
  """Returns the gradients of the shards of such a variable."""
  if not isinstance(variable, sharded.ShardedVariable):
    return [gradient]
  steps = reads.reader()
  if (
    isinstance(steps, step_transfers_lib.Steps)
    and id(gradient) in steps.round.shards
  ):
    _, there = steps.round.shards[id(gradient)]
    return list(there)
  return variable.split(gradient)


def variables_of(
  optimizer: Any, trainable_variables: Iterable[Any] | None
) -> list[Any]:
  """Returns the variables of an optimizer's `apply`; builds the optimizer."""
  if trainable_variables is None:
    trainable_variables = optimizer._trainable_variables
  variables = list(trainable_variables)
  build(optimizer, variables)
  return variables


def build(optimizer: Any, variables: Sequence[Any]) -> None:
  """Builds an optimizer unless it is built, with slots beside its variables.

  Keras builds it where gradients are first applied. In a graph that is traced,
  slots would not be placed by the strategy.

  Args:
    optimizer: an optimizer of Keras.
    variables: the variables that it is to update.
  """
  if optimizer.built:
    return
  with making_variables(optimizer):
    optimizer.build(list(variables))


@contextlib.contextmanager
def making_variables(optimizer: Any) -> Iterator[None]:
  """Context in which to make variables of an optimizer, also in a graph."""
  strategy = optimizer._distribution_strategy
  with tf.init_scope(), contextlib.ExitStack() as stack:
    if tf.distribute.get_strategy() is not strategy:
      stack.enter_context(strategy.scope())
    yield


def pieces(
  variables: Sequence[Any], gradients: Sequence[Any]
) -> list[aggregation.Piece]:
  """Returns the shards of the variables that have gradients, with these."""
  return [
    aggregation.Piece(shard, own)
    for variable, gradient in zip(variables, gradients, strict=True)
    if gradient is not None
    for shard, own in zip(
      of(value(variable)), split(value(variable), gradient), strict=True
    )
  ]


def lean(
  optimizer: Any,
  gradients: Sequence[Any],
  trainable_variables: Sequence[Any] | None,
) -> Sequence[Any]:
  """Returns gradients such that no more is sent to the ps than needed.

  Args:
    optimizer: the optimizer that is to apply them.
    gradients: the gradients; None for a variable without one.
    trainable_variables: their variables; by default the optimizer's.

  Returns:
    Gradients of equal values; see `table_gradients.lean`.
  """
  steps = reads.reader()
  variables = trainable_variables
  if variables is None:
    variables = getattr(optimizer, '_trainable_variables', ())
  if len(variables) != len(gradients):  # which Keras refuses
    return gradients
  for variable, gradient in zip(variables, gradients, strict=True):
    if gradient is not None:
      _set_shape(gradient, variable)
  if (
    not isinstance(steps, step_transfers_lib.Steps)
    or not steps.is_at_top_level()
  ):
    return gradients
  return [
    None if gradient is None else _lean(steps, value(variable), gradient)
    for variable, gradient in zip(variables, gradients, strict=True)
  ]


def _set_shape(gradient: Any, variable: Any) -> None:
  """Tells a gradient the shape of its variable, which its graph may not know.

  What is computed from a slice of an input, such as of one of many ids, often
  has unknown dimensions.
  """
  if isinstance(gradient, tf.IndexedSlices):
    gradient.values.set_shape([None, *variable.shape[1:]])
  else:
    gradient.set_shape(variable.shape)


def _lean(steps: step_transfers_lib.Steps, variable: Any, gradient: Any) -> Any:
  parts = split(variable, gradient)
  made = [
    table_gradients.lean(steps, shard, part)
    for shard, part in zip(of(variable), parts, strict=True)
  ]
  if all(one is other for one, other in zip(parts, made, strict=True)):
    return gradient
  return _whole(variable, iter(made))


def whole(
  variables: Sequence[Any], gradients: Sequence[Any], parts: Sequence[Any]
) -> list[Any]:
  """Joins the gradients of shards into those of variables.

  `split` returns the parts again, so that the joined gradient is computed only
  if something else uses it, such as clipping.

  Args:
    variables: the variables.
    gradients: their gradients; None for a variable without one.
    parts: new gradients, one for each of the `pieces` of these.

  Returns:
    The new gradients of the variables.
  """
  left = iter(parts)
  return [
    None if gradient is None else _whole(value(variable), left)
    for variable, gradient in zip(variables, gradients, strict=True)
  ]


def _whole(variable: Any, parts: Iterator[Any]) -> Any:
  own = of(variable)
  found = [next(parts) for _ in own]
  if own[0] is variable:
    return found[0]
  joined = _joined(variable, found)
  steps = reads.reader()
  if isinstance(steps, step_transfers_lib.Steps):
    steps.note_shards(joined, found)
  return joined


def _joined(variable: Any, parts: Sequence[Any]) -> Any:
  if not all(isinstance(part, tf.IndexedSlices) for part in parts):
    return tf.concat([tf.convert_to_tensor(part) for part in parts], axis=0)
  first, indices = 0, []
  for shard, part in zip(of(variable), parts, strict=True):
    indices.append(tf.cast(part.indices, tf.int64) + first)
    first += shard.shape[0]
  shape = tf.constant(variable.shape.as_list(), tf.int64)
  return tf.IndexedSlices(
    tf.concat([part.values for part in parts], axis=0),
    tf.concat(indices, axis=0),
    shape,
  )
