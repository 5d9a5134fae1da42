"""Applies gradients to variables on their ps."""

import collections
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import functools
from typing import Any

import tensorflow as tf

from tfps._compat import replicated_writes
from tfps.updates import ps_lock
from tfps.updates import rules
from tfps.updates import staleness as staleness_lib
from tfps.updates.tables import addresses as addresses_lib
from tfps.updates.tables import resources
from tfps.updates.tables import slots as slots_lib
from tfps.variables import growing
from tfps.wire import chunking
from tfps.wire import push
from tfps.wire import sparse_rows as sparse_rows_lib

# Tensors below this size are cheaper to copy than to send alone.
_FEW_BYTES = 1 << 18


@dataclasses.dataclass(frozen=True)
class Update:
  """Update of one variable.

  Attributes:
    rule: formula of the update.
    variable: variable or shard.
    slots: slots of the rule, on the same device.
    gradient: tensor, or `tf.IndexedSlices`, which may name a row repeatedly.
    decay: weight decay; weights first shrink by it times the learning rate.
    lazy: whether rows without a gradient, and their slots, stay unchanged even
      if the rule changes them.
    original: device of the variable of which this one is a replica; empty if it
      is none.
  """

  rule: rules.Rule
  variable: Any
  slots: Sequence[Any]
  gradient: Any
  decay: float | None = None
  lazy: bool = False
  original: str = ''

  @property
  def is_by_rows(self) -> bool:
    """True if rows without a gradient stay unchanged, with their slots.

    They do if the update is `lazy`, or the variable grows.
    """
    return self.lazy or growing.grows(self.variable)

  @property
  def variables(self) -> list[Any]:
    """The variable and its slots."""
    return [self.variable, *self.slots]

  @property
  def replica(self) -> 'Update | None':
    """The update of the variable's replica, if it has one."""
    variable, *slots = map(replicated_writes.replica_of, self.variables)
    if variable is None:
      return None
    addresses_lib.attach_to_replica(self.variable, variable)
    return dataclasses.replace(
      self, variable=variable, slots=slots, original=self.variable.device
    )


def apply(
  updates: Iterable[Update],
  step: rules.Step,
  staleness: staleness_lib.Staleness | None = None,
) -> None:
  """Updates variables and their replicas, each on its own device.

  It runs a rule's single operation where there is one, else several under the
  device's lock. Either way no concurrent update is lost.

  Args:
    updates: updates of different variables.
    step: learning rate and count, common to all.
    staleness: records how old the gradients are; None does not.
  """
  by_device = collections.defaultdict(list)
  for update in map(_with_distinct_rows, updates):
    for each in filter(None, (update, update.replica)):
      by_device[each.variable.device].append(each)
  ages = _Ages(staleness)
  with replicated_writes.suspended():
    # All are sent before, as the rates of replicas depend on other devices.
    sent = [
      each
      for device, own in by_device.items()
      for each in _send(device, own, step, ages)
    ]
    for chunk, inputs in sent:
      _apply_sent(chunk, inputs, ages)


def count(
  gradients: Sequence[Any],
  device: str,
  staleness: staleness_lib.Staleness,
) -> None:
  """Counts an update that is made by other means than `apply`.

  Args:
    gradients: its gradients; it is counted once they are computed.
    device: device of one of its variables, which counts.
    staleness: records how old the gradients are.
  """
  tag = staleness.tag(device)
  if tag is None:
    return
  computed = tf.nest.flatten(list(gradients), expand_composites=True)
  with tf.control_dependencies(computed):
    tag = tf.identity(tag)
  (tag,) = push.send([tag], device, {})
  staleness.note(device, tag, [], counts=True)


def _with_distinct_rows(update: Update) -> Update:
  gradient = tf.cast(update.gradient, update.variable.dtype)
  return dataclasses.replace(update, gradient=with_distinct_rows(gradient))


class _Ages:
  """Staleness of one update's gradients, by device.

  It is read from one device only, unless learning rates depend on it.
  """

  def __init__(self, staleness: staleness_lib.Staleness | None) -> None:
    self._staleness = staleness
    self._found: dict[str, tf.Tensor | None] = {}

  def tags(self, device: str) -> list[tf.Tensor]:
    """Returns the tags to send to a device."""
    own = self._staleness
    if own is None or device in self._found:
      return []
    if self._found and not own.divides_rate:
      return []
    tag = own.tag(device)
    return [] if tag is None else [tag]

  def note(
    self, device: str, tags: Sequence[tf.Tensor], gradients: Sequence[Any]
  ) -> None:
    """Records the staleness of gradients that have arrived at a device."""
    if self._staleness is not None:
      for tag in tags:
        is_first = not self._found
        self._found[device] = self._staleness.note(
          device, tag, gradients, counts=is_first
        )

  def step(self, update: Update, step: rules.Step) -> rules.Step:
    """Returns an update's step with its rate divided by its staleness.

    A replica's is that of its original, so that both stay equal.
    """
    found = self._found.get(update.original or update.variable.device)
    if self._staleness is None or found is None:
      return step
    if not self._staleness.divides_rate:
      return step
    with tf.device(update.variable.device):
      age = tf.cast(tf.maximum(found, 1), step.rate.dtype)
      return step._replace(rate=step.rate / age)


def _send(
  device: str, updates: Sequence[Update], step: rules.Step, ages: _Ages
) -> Iterator[tuple[Sequence[Update], list[Any]]]:
  """Yields a device's updates with their steps and gradients, sent to it."""
  chunks = list(chunking.divide(updates, lambda update: update.gradient))
  inputs = [_inputs(chunk, step) for chunk in chunks]
  are_replicas = all(update.original for update in updates)
  tags = [] if are_replicas else ages.tags(device)
  if any(_is_single_large(chunk) for chunk in chunks):
    # Sent once for all chunks, rather than with each.
    steps = [[own_step for own_step, _ in each] for each in inputs]
    steps, tags = push.send((steps, tags), device, {})
    inputs = [
      [(own, gradient) for own, (_, gradient) in zip(there, each, strict=True)]
      for there, each in zip(steps, inputs, strict=True)
    ]
  for chunk, own in zip(chunks, inputs, strict=True):
    arrived, tags = push.send((own, tags), device, _names(chunk, own))
    ages.note(device, tags, [gradient for _, gradient in arrived])
    tags = []
    yield chunk, arrived


def _is_single_large(updates: Sequence[Update]) -> bool:
  """Returns whether to send a gradient apart from its step.

  Tensors that are sent together are copied on both sides; a single one is not.
  """
  if len(updates) > 1 or tf.executing_eagerly():
    return False
  return (chunking.num_bytes(updates[0].gradient) or 0) > _FEW_BYTES


def _apply_sent(
  updates: Sequence[Update], inputs: Sequence[Any], ages: _Ages
) -> None:
  waiting = []
  for update, (own_step, gradient) in zip(updates, inputs, strict=True):
    own_step = ages.step(update, own_step)
    if not _ran_kernel(update, own_step, gradient):
      job = functools.partial(_apply, update)
      waiting.append(ps_lock.Job(update.variable, job, (own_step, gradient)))
  ps_lock.run(waiting)


def _inputs(
  updates: Sequence[Update], step: rules.Step
) -> list[tuple[rules.Step, Any]]:
  """Returns the step and gradient of each update, in its variable's type."""
  steps = {
    dtype: step.cast(dtype) for dtype in {u.variable.dtype for u in updates}
  }
  return [
    (update.rule.needed(steps[update.variable.dtype]), update.gradient)
    for update in updates
  ]


def _names(updates: Sequence[Update], inputs: Sequence[Any]) -> dict[int, str]:
  """Returns variables' names by the identity of their gradients' tensors."""
  return {
    id(getattr(gradient, 'values', gradient)): push.name_of(update.variable)
    for update, (_, gradient) in zip(updates, inputs, strict=True)
  }


def with_distinct_rows(gradient: Any) -> Any:
  """Returns a gradient with values of equal rows added up, if it has rows."""
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
  """Shrinks weights; runs within a `ps_lock.Job`.

  Args:
    variable: variable or shard.
    factor: weight decay.
    rate: learning rate, a scalar in the variable's type.

  Returns:
    The operation.
  """
  value = read(variable)
  change = value * tf.constant(factor, value.dtype) * rate
  return [
    tf.raw_ops.AssignSubVariableOp(resource=variable.handle, value=change)
  ]


def read(variable: Any) -> tf.Tensor:
  """Returns a variable's value; runs within a `ps_lock.Job`."""
  return tf.raw_ops.ReadVariableOp(
    resource=variable.handle, dtype=variable.dtype
  )


def write(variable: Any, value: tf.Tensor) -> Any:
  """Assigns a value and returns the operation, within a `ps_lock.Job`."""
  return tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)


def _ran_kernel(update: Update, step: rules.Step, gradient: Any) -> bool:
  if update.is_by_rows or update.decay is not None:
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
  if has_rows and update.is_by_rows:
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
  addresses = addresses_lib.of(update.variable)
  if addresses is not None:
    gradient, have_old_slots = addresses.resolve(gradient)
  with tf.control_dependencies(slots_lib.fit(update.variable, update.slots)):
    old = [
      resources.gather(each, gradient.indices) for each in update.variables
    ]
    if addresses is not None:
      # The first row never changes, nor do its slots.
      first = [resources.gather(slot, [0]) for slot in update.slots]
      old[1:] = [
        tf.where(have_old_slots[:, tf.newaxis], one, other)
        for one, other in zip(first, old[1:], strict=True)
      ]
  if decay is not None:
    old[0] -= old[0] * tf.constant(decay, old[0].dtype) * step.rate
  new = update.rule.new_values(step, gradient.values, old)
  return [
    resources.scatter(variable, gradient.indices, value)
    for variable, value in zip(update.variables, new, strict=True)
  ]
