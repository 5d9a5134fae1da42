"""Has one worker apply the mean of what all workers' optimizers are given."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

from tfps._compat import reads
from tfps.keras import shards
from tfps.updates import policies
from tfps.wire import step_transfers as step_transfers_lib
from tfps.wire import transfers

Own = Callable[..., Any]  # Keras' own method


def is_asked_for(optimizer: Any) -> bool:
  """Whether its gradients are to meet those of other workers."""
  policy = transfers.of(optimizer._distribution_strategy).policy
  if not isinstance(policy, policies.Sync):
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
  """Sends gradients to meet those of other workers; one applies their mean.

  Args:
    own: applies gradients.
    optimizer: whose method that is.
    grads: of this worker; None where a variable has none.
    trainable_variables: as for `own`.

  Raises:
    ValueError: nobody knows with whose gradients they are to meet.
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
  """The steps being traced, in which gradients meet.

  Raises:
    ValueError: there are none.
  """
  steps = reads.reader()
  if not isinstance(steps, step_transfers_lib.Steps) or steps.sync_step is None:
    raise ValueError(
      f'{optimizer.name}: applies gradients outside of Coordinator.train, '
      'BetweenGraphStrategy.train and fit, where they do not meet those of '
      'other workers, as updates=Sync() asks for. Let one of these do it, or '
      'choose updates=Async().'
    )
  if not steps.is_at_top_level():
    raise ValueError(
      f'{steps.policy}: {optimizer.name} applies gradients within a tf.cond or '
      'a loop, which other workers may not come to. Apply them outside of it.'
    )
  return steps
