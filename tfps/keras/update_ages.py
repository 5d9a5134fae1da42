"""Staleness of the gradients that Keras' optimizers apply."""

from collections.abc import Sequence
from typing import Any

from tfps.keras import optimizer_rules
from tfps.keras import shards
from tfps.updates import apply as apply_lib
from tfps.updates import staleness as staleness_lib


def of(optimizer: Any) -> staleness_lib.Staleness | None:
  """Returns the staleness of an optimizer's gradients; None if not measured.

  Raises:
    ValueError: learning rates are to be divided by the staleness, which is
      unknown here, or the optimizer computes its updates by itself.
  """
  found = staleness_lib.of(optimizer._distribution_strategy)
  if found is None or not found.divides_rate:
    return found
  if not optimizer_rules.is_served(optimizer):
    raise ValueError(
      f'{optimizer.name}: {type(optimizer).__name__} computes its updates by '
      'itself, where divide_rate cannot divide the learning rate by the '
      f'staleness. Take one of {optimizer_rules.names()}, rather than a '
      'subclass of it, or leave out divide_rate.'
    )
  if not staleness_lib.is_known():
    raise ValueError(
      f'{optimizer.name}: applies gradients outside of Coordinator.train, '
      'BetweenGraphStrategy.train and fit, or in a tf.function that the step '
      'calls. There their staleness is unknown, by which divide_rate divides '
      'the learning rate. Apply them in the step itself, or leave out '
      'divide_rate.'
    )
  return found


def count(optimizer: Any, grads_and_vars: Sequence[tuple[Any, Any]]) -> None:
  """Counts an update that an optimizer computes by itself.

  Args:
    optimizer: the optimizer.
    grads_and_vars: gradients with their variables.

  Raises:
    ValueError: see `of`.
  """
  staleness = of(optimizer)
  if staleness is None or not grads_and_vars:
    return
  first = shards.of(shards.value(grads_and_vars[0][1]))[0]
  gradients = [gradient for gradient, _ in grads_and_vars]
  apply_lib.count(gradients, first.device, staleness)
