"""Update rules that compute what Keras' optimizers do, and their slots."""

from collections.abc import Sequence
import dataclasses
from typing import Any

import keras

from tfps.updates import adam_rules
from tfps.updates import rules


@dataclasses.dataclass(frozen=True)
class Served:
  """A rule for an optimizer.

  Attributes:
    rule: computes the optimizer's `update_step`.
    slots: one list of Keras variables for each of the rule's slots.
  """

  rule: rules.Rule
  slots: Sequence[Sequence[Any]]


def serve(optimizer: Any) -> Served | None:
  """Returns the rule of an optimizer; None if it must compute by itself.

  Subclasses may compute something else, so only Keras' own classes have rules.
  """
  make = _MAKERS.get(type(optimizer))
  return make(optimizer) if make else None


def is_served(optimizer: Any) -> bool:
  """Returns whether there is a rule for an optimizer."""
  return type(optimizer) in _MAKERS


def names() -> str:
  """Returns the names of the classes that have rules, for errors."""
  return ', '.join(kind.__name__ for kind in _MAKERS)


def _sgd(optimizer: Any) -> Served:
  if optimizer.momentum == 0:
    return Served(rules.Sgd(), [])
  rule = rules.Momentum(optimizer.momentum, optimizer.nesterov)
  return Served(rule, [optimizer.momentums])


def _adagrad(optimizer: Any) -> Served:
  return Served(rules.Adagrad(optimizer.epsilon), [optimizer._accumulators])


def _rmsprop(optimizer: Any) -> Served:
  rule = rules.RmsProp(
    optimizer.rho,
    optimizer.momentum,
    optimizer.epsilon,
    optimizer.centered,
  )
  slots = [
    optimizer._velocities,
    optimizer._momentums,
    optimizer._average_gradients,
  ]
  return Served(rule, [slot for slot in slots if slot])


def _adadelta(optimizer: Any) -> Served:
  rule = rules.Adadelta(optimizer.rho, optimizer.epsilon)
  slots = [optimizer._accumulated_grads, optimizer._accumulated_delta_vars]
  return Served(rule, slots)


def _ftrl(optimizer: Any) -> Served:
  rule = rules.Ftrl(
    optimizer.learning_rate_power,
    optimizer.l1_regularization_strength,
    optimizer.l2_regularization_strength,
    optimizer.l2_shrinkage_regularization_strength,
    optimizer.beta,
  )
  return Served(rule, [optimizer._accumulators, optimizer._linears])


def _adam(optimizer: Any) -> Served:
  rule = adam_rules.Adam(optimizer.beta_1, optimizer.beta_2, optimizer.epsilon)
  slots = [optimizer._momentums, optimizer._velocities]
  if optimizer.amsgrad:
    slots.append(optimizer._velocity_hats)
  return Served(rule, slots)


def _adamax(optimizer: Any) -> Served:
  rule = adam_rules.Adamax(
    optimizer.beta_1, optimizer.beta_2, optimizer.epsilon
  )
  return Served(rule, [optimizer._m, optimizer._u])


def _nadam(optimizer: Any) -> Served:
  rule = adam_rules.Nadam(optimizer.beta_1, optimizer.beta_2, optimizer.epsilon)
  return Served(rule, [optimizer._momentums, optimizer._velocities])


def _lion(optimizer: Any) -> Served:
  rule = adam_rules.Lion(optimizer.beta_1, optimizer.beta_2)
  return Served(rule, [optimizer._momentums])


_MAKERS = {
  keras.optimizers.SGD: _sgd,
  keras.optimizers.Adagrad: _adagrad,
  keras.optimizers.RMSprop: _rmsprop,
  keras.optimizers.Adadelta: _adadelta,
  keras.optimizers.Ftrl: _ftrl,
  keras.optimizers.Adam: _adam,
  keras.optimizers.AdamW: _adam,
  keras.optimizers.Adamax: _adamax,
  keras.optimizers.Nadam: _nadam,
  keras.optimizers.Lion: _lion,
}
