"""Accumulates the gradients of several steps and applies them in one update.

Optimizers hand over the gradients that they are to apply. Until the round ends
they are kept on the worker; then the optimizer gets all of them at once.
"""

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import dataclasses
from typing import Any

import tensorflow as tf

from tfps._compat import reads as compat
from tfps.updates import apply as apply_lib
from tfps.updates import policies
from tfps.wire import step_transfers as step_transfers_lib

Gradients = Sequence[Any]


@dataclasses.dataclass
class _Total:
  """Sums of the gradients that an optimizer got in a round, by variable."""

  gradients: dict[int, Any] = dataclasses.field(default_factory=dict)
  num_steps: int = 0

  def add(self, gradients: Gradients, variables: Sequence[Any]) -> None:
    self.num_steps += 1
    for gradient, variable in zip(gradients, variables, strict=True):
      if gradient is not None:
        before = self.gradients.get(id(variable))
        self.gradients[id(variable)] = _sum(before, gradient)

  def times(self, factor: float, variables: Sequence[Any]) -> list[Any]:
    """Returns the scaled sum of each variable; None without a gradient."""
    found = [self.gradients.get(id(variable)) for variable in variables]
    return [
      None if each is None else times(factor, _with_distinct_rows(each))
      for each in found
    ]


class Accumulation:
  """Accumulates an optimizer's gradients, in a step that is being traced.

  Args:
    steps: transfers of the steps.
    optimizer: a Keras optimizer. If a step has it apply gradients several
      times, each time has its own sums.

  Raises:
    ValueError: it applies them in a branch or loop, whose tensors cannot leave.
  """

  def __init__(self, steps: step_transfers_lib.Steps, optimizer: Any) -> None:
    self._steps = steps
    self._policy = steps.policy
    if not steps.is_at_top_level():
      raise ValueError(
        f'{self._policy}: {optimizer.name} applies gradients within a tf.cond '
        'or a loop, where they cannot be accumulated. Apply them outside of it.'
      )
    calls = steps.round.calls
    calls[id(optimizer)] += 1
    key = id(optimizer), calls[id(optimizer)]
    self._total = steps.round.gathered.setdefault(key, _Total())

  def add(self, gradients: Gradients, variables: Sequence[Any]) -> None:
    """Adds this step's gradients.

    Args:
      gradients: one per variable; None where a variable has none.
      variables: variables or shards.
    """
    self._total.add(gradients, variables)

  @property
  def is_complete(self) -> bool:
    """True at the end of the round, when the update is due."""
    return self._steps.round.is_ending

  def gradients(self, variables: Sequence[Any]) -> list[Any]:
    """Returns the gradients that the step's optimizer applies."""
    is_mean = isinstance(self._policy, policies.Accumulate)
    factor = 1.0 / self._total.num_steps if is_mean else 1.0
    return self._total.times(factor, variables)

  def changes(self, variables: Sequence[Any]) -> list[Any]:
    """Returns the changes for an outer optimizer: old values minus new.

    They are multiplied by the scale of the loss, as the gradients are.
    """
    return self._total.times(self._policy.inner_learning_rate, variables)

  def descend(self, variable: Any, gradient: Any) -> None:
    """Applies a local step to the worker's copy of a variable or shard."""
    if isinstance(self._policy, policies.LocalSteps):
      change = times(-self._policy.inner_learning_rate, gradient)
      self._steps.change(variable, tf.cast(change, variable.dtype))


def steps_to_gather() -> step_transfers_lib.Steps | None:
  """Returns the current steps if their gradients are accumulated, or None."""
  steps = compat.reader()
  if not isinstance(steps, step_transfers_lib.Steps) or steps.round.is_applying:
    return None
  return steps if steps.round_length > 1 else None


@contextlib.contextmanager
def applying(steps: step_transfers_lib.Steps) -> Iterator[None]:
  """Returns a context in which optimizers apply accumulated gradients."""
  steps.write_back()
  steps.round.is_applying = True
  try:
    yield
  finally:
    steps.round.is_applying = False


def times(factor: Any, gradient: Any) -> Any:
  """Returns a gradient multiplied by a number."""
  if not isinstance(gradient, tf.IndexedSlices):
    return gradient * tf.cast(factor, gradient.dtype)
  values = gradient.values * tf.cast(factor, gradient.dtype)
  return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)


def _with_distinct_rows(gradient: Any) -> Any:
  """Returns a gradient with equal rows added up, as clipping by norm needs.

  It keeps the dense shape, which dividing the gradient into shards needs.
  """
  distinct = apply_lib.with_distinct_rows(gradient)
  if distinct is gradient:
    return gradient
  return tf.IndexedSlices(
    distinct.values, distinct.indices, gradient.dense_shape
  )


def _sum(before: Any, gradient: Any) -> Any:
  if before is None:
    return gradient
  if not all(isinstance(g, tf.IndexedSlices) for g in (before, gradient)):
    return tf.convert_to_tensor(before) + tf.convert_to_tensor(gradient)
  indices = tf.cast(gradient.indices, before.indices.dtype)
  return tf.IndexedSlices(
    tf.concat([before.values, gradient.values], axis=0),
    tf.concat([before.indices, indices], axis=0),
    before.dense_shape,
  )
