"""Applies the mean of all workers' gradients by the optimizer of one worker."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

from tfps._compat import reads
from tfps.keras import shards
from tfps.updates import sessions
from tfps.wire import step_transfers as step_transfers_lib

Own = Callable[..., Any]  # Keras' own method


def is_asked_for(optimizer: Any) -> bool:
  """Returns whether an optimizer's gradients are averaged over workers."""
  if not sessions.of(optimizer._distribution_strategy).makes_one_update:
    return False
  steps = reads.reader()
  return (
    not isinstance(steps, step_transfers_lib.Steps)
    or not steps.round.is_applying
  )


def apply(
  own: Own,
  optimizer: Any,
  grads: Sequence[Any],
  trainable_variables: Iterable[Any] | None,
) -> None:
  """Pushes gradients to be averaged; one worker applies the mean.

  Args:
    own: Keras' own method, which applies gradients.
    optimizer: the optimizer.
    grads: this worker's gradients; None for a variable without one.
    trainable_variables: the variables, as for `own`.

  Raises:
    ValueError: the call is not in a step that is synchronized; see `steps_of`.
  """
  steps = steps_of(optimizer)
  variables = shards.variables_of(optimizer, trainable_variables)
  pieces = shards.pieces(variables, grads)

  def update(means: list[Any]) -> None:
    steps.round.is_applying = True
    try:
      own(shards.whole(variables, grads, means), variables)
    finally:
      steps.round.is_applying = False

  steps.sync_step.meet(pieces, update)


def steps_of(optimizer: Any) -> step_transfers_lib.Steps:
  """Returns the steps that are being traced, whose gradients are averaged.

  Raises:
    ValueError: gradients are applied outside of such steps, or within a
      `tf.cond` or a loop.
  """
  steps = reads.reader()
  if not isinstance(steps, step_transfers_lib.Steps) or steps.sync_step is None:
    raise ValueError(
      f'{optimizer.name}: applies gradients outside of Coordinator.train, '
      'BetweenGraphStrategy.train and fit, or in a tf.function that the step '
      'calls. There they cannot be averaged with those of other workers, as '
      'updates=Sync() requires. Apply them in the step itself, or use '
      'updates=Async().'
    )
  if not steps.is_at_top_level():
    raise ValueError(
      f'{steps.policy}: {optimizer.name} applies gradients within a tf.cond or '
      'a loop, which other workers may not execute. Apply them outside of it.'
    )
  return steps
