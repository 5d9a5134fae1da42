"""Has the ps apply gradients to the variables that it holds."""

import collections
from collections.abc import Iterable
from collections.abc import Sequence
import dataclasses
import functools
from typing import Any

import tensorflow as tf

from tfps._compat import replicated_writes
from tfps.updates import ps_lock
from tfps.updates import rules
from tfps.updates import staleness as staleness_lib
from tfps.wire import chunking
from tfps.wire import push
from tfps.wire import sparse_rows as sparse_rows_lib

# What takes less time to copy than to send by itself.
_FEW_BYTES = 1 << 18


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

  @property
  def twin(self) -> 'Update | None':
    """The same of the variable's twin, if it has one."""
    variable, *slots = map(replicated_writes.replica_of, self.variables)
    if variable is None:
      return None
    return dataclasses.replace(self, variable=variable, slots=slots)


def apply(
  updates: Iterable[Update],
  step: rules.Step,
  staleness: staleness_lib.Staleness | None = None,
) -> None:
  """Has each variable's device update it, and its twin's device the twin.

  One operation does it if the rule knows one. Otherwise the device is locked
  meanwhile. Either way nobody's update is lost.

  Args:
    updates: of any variables.
    step: common to them all.
    staleness: takes note of how old the gradients are.
  """
  by_device = collections.defaultdict(list)
  for update in map(_with_distinct_rows, updates):
    for each in filter(None, (update, update.twin)):
      by_device[each.variable.device].append(each)
  ages = _Ages(staleness)
  with replicated_writes.suspended():
    for device, own in by_device.items():
      _apply_on(device, own, step, ages)


def _with_distinct_rows(update: Update) -> Update:
  gradient = tf.cast(update.gradient, update.variable.dtype)
  return dataclasses.replace(update, gradient=with_distinct_rows(gradient))


class _Ages:
  """The staleness of one update's gradients, by device.

  All have the same where learning rates do not depend on it, so that one device
  tells.
  """

  def __init__(self, staleness: staleness_lib.Staleness | None) -> None:
    self._staleness = staleness
    self._found: dict[str, tf.Tensor | None] = {}

  def tags(self, device: str) -> list[tf.Tensor]:
    """What has to be sent to a device."""
    own = self._staleness
    if own is None or device in self._found:
      return []
    if self._found and not own.divides_rate:
      return []
    tag = own.tag(device)
    return [] if tag is None else [tag]

  def note(self, device: str, tags: Sequence[tf.Tensor]) -> None:
    """Takes what has arrived there."""
    if self._staleness is not None:
      for tag in tags:
        is_first = not self._found
        self._found[device] = self._staleness.note(device, tag, counts=is_first)

  def step(self, device: str, step: rules.Step) -> rules.Step:
    """A step there, by a learning rate that is divided by the staleness."""
    found = self._found.get(device)
    if self._staleness is None or found is None:
      return step
    if not self._staleness.divides_rate:
      return step
    with tf.device(device):
      age = tf.cast(tf.maximum(found, 1), step.rate.dtype)
      return step._replace(rate=step.rate / age)


def _apply_on(
  device: str, updates: Sequence[Update], step: rules.Step, ages: _Ages
) -> None:
  chunks = list(chunking.divide(updates, lambda update: update.gradient))
  inputs = [_inputs(chunk, step) for chunk in chunks]
  if any(_is_large_and_alone(chunk) for chunk in chunks):
    # Once for all chunks: what is there already is not sent again.
    steps = [[own_step for own_step, _ in each] for each in inputs]
    steps, tags = push.send((steps, ages.tags(device)), device, {})
    ages.note(device, tags)
    inputs = [
      [(own, gradient) for own, (_, gradient) in zip(there, each, strict=True)]
      for there, each in zip(steps, inputs, strict=True)
    ]
  for chunk, own in zip(chunks, inputs, strict=True):
    _apply_chunk(device, chunk, own, ages)


def _is_large_and_alone(updates: Sequence[Update]) -> bool:
  """Whether it costs less not to join a gradient with the step.

  What crosses together is copied on both sides, a single tensor is not.
  """
  if len(updates) > 1 or tf.executing_eagerly():
    return False
  return (chunking.num_bytes(updates[0].gradient) or 0) > _FEW_BYTES


def _apply_chunk(
  device: str,
  updates: Sequence[Update],
  inputs: list[Any],
  ages: _Ages,
) -> None:
  names = _names(updates, inputs)
  inputs, tags = push.send((inputs, ages.tags(device)), device, names)
  ages.note(device, tags)
  waiting = []
  for update, (own_step, gradient) in zip(updates, inputs, strict=True):
    own_step = ages.step(device, own_step)
    if not _runs_alone(update, own_step, gradient):
      job = functools.partial(_apply, update)
      waiting.append(ps_lock.Job(update.variable, job, (own_step, gradient)))
  ps_lock.run(waiting)


def _inputs(
  updates: Sequence[Update], step: rules.Step
) -> list[tuple[rules.Step, Any]]:
  """What each update needs, in the type of its variable."""
  steps = {
    dtype: step.cast(dtype) for dtype in {u.variable.dtype for u in updates}
  }
  return [
    (update.rule.needed(steps[update.variable.dtype]), update.gradient)
    for update in updates
  ]


def _names(updates: Sequence[Update], inputs: Sequence[Any]) -> dict[int, str]:
  """Whose gradient a tensor is, by the tensor's identity."""
  return {
    id(getattr(gradient, 'values', gradient)): push.name_of(update.variable)
    for update, (_, gradient) in zip(updates, inputs, strict=True)
  }


def with_distinct_rows(gradient: Any) -> Any:
  """The same gradient, naming each row once if it names rows."""
  if not isinstance(gradient, tf.IndexedSlices):
    return gradient
  if sparse_rows_lib.are_distinct(gradient.indices):
    return gradient
  rows, positions = tf.unique(gradient.indices)
  values = tf.math.unsorted_segment_sum(
    gradient.values, positions, tf.size(rows)
  )
  return tf.IndexedSlices(values, rows)


def decay(variable: Any, factor: float, rate: tf.Tensor) -> list[Any]:
  """Shrinks weights; for a job."""
  value = read(variable)
  change = value * tf.constant(factor, value.dtype) * rate
  return [
    tf.raw_ops.AssignSubVariableOp(resource=variable.handle, value=change)
  ]


def read(variable: Any) -> tf.Tensor:
  """A variable's value; for a job."""
  return tf.raw_ops.ReadVariableOp(
    resource=variable.handle, dtype=variable.dtype
  )


def write(variable: Any, value: tf.Tensor) -> Any:
  """Sets a variable's value; for a job."""
  return tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)


def _runs_alone(update: Update, step: rules.Step, gradient: Any) -> bool:
  if update.lazy or update.decay is not None:
    return False
  with tf.device(update.variable.device):
    return _run_kernel(update, step, gradient) is not None


def _run_kernel(
  update: Update, step: rules.Step, gradient: Any
) -> list[Any] | None:
  if not update.rule.keeps_rows:
    gradient = _dense(gradient, update.variable)
  return update.rule.run_kernel(step, gradient, update.variables)


def _dense(gradient: Any, variable: Any) -> tf.Tensor:
  if not isinstance(gradient, tf.IndexedSlices):
    return gradient
  rows = gradient.indices[:, tf.newaxis]
  shape = tf.constant(variable.shape.as_list(), rows.dtype)
  return tf.scatter_nd(rows, gradient.values, shape)


def _apply(update: Update, step: rules.Step, gradient: Any) -> list[Any]:
  has_rows = isinstance(gradient, tf.IndexedSlices)
  if has_rows and update.lazy:
    return _apply_to_rows(update, step, gradient, decay=update.decay)
  decayed = []
  if update.decay is not None:
    decayed = decay(update.variable, update.decay, step.rate)
  kernel = _run_kernel(update, step, gradient)
  if kernel is not None:
    return decayed + kernel
  if has_rows and update.rule.keeps_rows:
    return decayed + _apply_to_rows(update, step, gradient, decay=None)
  return decayed + _apply_to_all(update, step, gradient)


def _apply_to_all(update: Update, step: rules.Step, gradient: Any) -> list[Any]:
  gradient = _dense(gradient, update.variable)
  old = [read(variable) for variable in update.variables]
  new = update.rule.new_values(step, gradient, old)
  return [
    write(v, value) for v, value in zip(update.variables, new, strict=True)
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
