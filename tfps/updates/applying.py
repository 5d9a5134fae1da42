"""Has the ps apply gradients to the variables that it holds."""

import collections
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
import dataclasses
import functools
from typing import Any

import tensorflow as tf

from tfps.updates import locks
from tfps.updates import rules


@dataclasses.dataclass(frozen=True)
class Update:
  """One variable's part of an update.

  Attributes:
    rule: how to update it.
    variable: an ordinary one, or one shard.
    slots: those of the rule, on the same device.
    gradient: a tensor, or `tf.IndexedSlices`, which may name a row repeatedly.
    decay: by which, times the learning rate, the weights shrink beforehand.
    lazy: whether rows without a gradient stay as they are together with their
      slots, even if the rule says otherwise.
  """

  rule: rules.Rule
  variable: Any
  slots: Sequence[Any]
  gradient: Any
  decay: float | None = None
  lazy: bool = False

  @property
  def variables(self) -> list[Any]:
    return [self.variable, *self.slots]


def apply(updates: Iterable[Update], step: rules.Step) -> None:
  """Has each variable's device update it.

  One operation does it if the rule knows one. Otherwise the device is locked
  meanwhile. Either way nobody's update is lost.

  Args:
    updates: of any variables.
    step: common to them all.
  """
  updates = [_with_plain_gradient(update) for update in updates]
  rest = [update for update in updates if not _runs_alone(update, step)]
  for device, own in by_device(rest, lambda update: update.variable).items():
    locks.exclusively(
      device,
      functools.partial(_apply_all, own),
      [step, [update.gradient for update in own]],
    )


def by_device(
  items: Iterable[Any], variable_of: Callable[[Any], Any]
) -> dict[str, list[Any]]:
  """The items by the device of the variable that belongs to each."""
  found = collections.defaultdict(list)
  for item in items:
    found[variable_of(item).device].append(item)
  return found


def _with_plain_gradient(update: Update) -> Update:
  gradient = tf.cast(update.gradient, update.variable.dtype)
  if isinstance(gradient, tf.IndexedSlices):
    gradient = _sum_rows(gradient)
  return dataclasses.replace(update, gradient=gradient)


def _sum_rows(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
  """Names each row once."""
  rows, positions = tf.unique(gradient.indices)
  values = tf.math.unsorted_segment_sum(
    gradient.values, positions, tf.size(rows)
  )
  return tf.IndexedSlices(values, rows)


def _runs_alone(update: Update, step: rules.Step) -> bool:
  if update.lazy or update.decay is not None:
    return False
  with tf.device(update.variable.device):
    return _run_kernel(update, step, update.gradient) is not None


def _run_kernel(
  update: Update, step: rules.Step, gradient: Any
) -> list[Any] | None:
  if not update.rule.keeps_rows:
    gradient = _dense(gradient, update.variable)
  step = step.cast(update.variable.dtype)
  return update.rule.run_kernel(step, gradient, update.variables)


def _dense(gradient: Any, variable: Any) -> tf.Tensor:
  if not isinstance(gradient, tf.IndexedSlices):
    return gradient
  shape = tf.constant(variable.shape.as_list(), gradient.indices.dtype)
  return tf.scatter_nd(gradient.indices[:, tf.newaxis], gradient.values, shape)


def _apply_all(
  updates: Sequence[Update], step: rules.Step, gradients: Sequence[Any]
) -> list[Any]:
  operations: list[Any] = []
  for update, gradient in zip(updates, gradients, strict=True):
    own = step.cast(update.variable.dtype)
    operations += _apply_one(update, own, gradient)
  return operations


def _apply_one(update: Update, step: rules.Step, gradient: Any) -> list[Any]:
  is_sparse = isinstance(gradient, tf.IndexedSlices)
  if is_sparse and update.lazy:
    return _apply_to_rows(update, step, gradient, decay=update.decay)
  operations = decayed(update.variable, update.decay, step.rate)
  kernel = _run_kernel(update, step, gradient)
  if kernel is not None:
    return operations + kernel
  if is_sparse and update.rule.keeps_rows:
    return operations + _apply_to_rows(update, step, gradient, decay=None)
  return operations + _apply_to_all(update, step, gradient)


def decayed(variable: Any, decay: float | None, rate: tf.Tensor) -> list[Any]:
  """Shrinks weights, in a lock."""
  if decay is None:
    return []
  value = read(variable)
  change = value * tf.constant(decay, value.dtype) * rate
  return [
    tf.raw_ops.AssignSubVariableOp(resource=variable.handle, value=change)
  ]


def read(variable: Any) -> tf.Tensor:
  """A variable's value, of an ordinary variable or a strategy's."""
  return tf.raw_ops.ReadVariableOp(
    resource=variable.handle, dtype=variable.dtype
  )


def _apply_to_all(update: Update, step: rules.Step, gradient: Any) -> list[Any]:
  gradient = _dense(gradient, update.variable)
  old = [read(variable) for variable in update.variables]
  new = update.rule.new_values(step, gradient, old)
  return [
    tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)
    for variable, value in zip(update.variables, new, strict=True)
  ]


def _apply_to_rows(
  update: Update,
  step: rules.Step,
  gradient: tf.IndexedSlices,
  *,
  decay: float | None,
) -> list[Any]:
  old = [
    tf.raw_ops.ResourceGather(
      resource=variable.handle, indices=gradient.indices, dtype=variable.dtype
    )
    for variable in update.variables
  ]
  if decay is not None:
    old[0] -= old[0] * tf.constant(decay, old[0].dtype) * step.rate
  new = update.rule.new_values(step, gradient.values, old)
  return [
    tf.raw_ops.ResourceScatterUpdate(
      resource=variable.handle, indices=gradient.indices, updates=value
    )
    for variable, value in zip(update.variables, new, strict=True)
  ]
