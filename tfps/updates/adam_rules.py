"""Update rules of Adam and its variants."""

import dataclasses
from typing import Any

import tensorflow as tf

from tfps.updates import rules
from tfps.updates.rules import Step
from tfps.updates.rules import Values


@dataclasses.dataclass(frozen=True)
class Adam(rules.Rule):
  """Adam; slots: momentum, velocity and, for AMSGrad, the largest velocity."""

  beta_1: float
  beta_2: float
  epsilon: float
  counts = True

  def new_values(self, step: Step, gradient: tf.Tensor, old: Values) -> Values:
    value, momentum, velocity, *largest = old
    momentum = momentum + (gradient - momentum) * (1 - self.beta_1)
    velocity = velocity + (tf.square(gradient) - velocity) * (1 - self.beta_2)
    if largest:
      largest = [tf.maximum(largest[0], velocity)]
    below = tf.sqrt(largest[0] if largest else velocity) + self.epsilon
    value = value - momentum * self._rate(step) / below
    return [value, momentum, velocity, *largest]

  def _rate(self, step: Step) -> tf.Tensor:
    first, second = _powers(self, step)
    return step.rate * tf.sqrt(1 - second) / (1 - first)


@dataclasses.dataclass(frozen=True)
class Adamax(rules.Rule):
  """Adamax; slots: momentum and the largest gradient, which decays."""

  beta_1: float
  beta_2: float
  epsilon: float
  counts = True

  def new_values(self, step: Step, gradient: tf.Tensor, old: Values) -> Values:
    value, momentum, largest = old
    momentum = momentum + (gradient - momentum) * (1 - self.beta_1)
    largest = tf.maximum(self.beta_2 * largest, tf.abs(gradient))
    first, _ = _powers(self, step)
    below = (1 - first) * (largest + self.epsilon)
    return [value - step.rate * momentum / below, momentum, largest]


@dataclasses.dataclass(frozen=True)
class Nadam(rules.Rule):
  """Nadam; slots: momentum and velocity."""

  beta_1: float
  beta_2: float
  epsilon: float
  counts = True

  def new_values(self, step: Step, gradient: tf.Tensor, old: Values) -> Values:
    value, momentum, velocity = old
    beta_1 = tf.constant(self.beta_1, value.dtype)
    beta_2 = tf.constant(self.beta_2, value.dtype)
    now = beta_1 * momentum_factor(step.count)
    soon = beta_1 * momentum_factor(step.count + 1)
    momentum = momentum + (gradient - momentum) * (1 - beta_1)
    velocity = velocity + (tf.square(gradient) - velocity) * (1 - beta_2)
    ahead = soon * momentum / (1 - step.product * soon)
    ahead = ahead + (1 - now) * gradient / (1 - step.product)
    below = tf.sqrt(velocity / (1 - tf.pow(beta_2, step.count))) + self.epsilon
    return [value - ahead * step.rate / below, momentum, velocity]


def momentum_factor(count: tf.Tensor) -> tf.Tensor:
  """Returns the factor of beta_1 in Nadam's momentum at a step."""
  return 1.0 - 0.5 * tf.pow(tf.constant(0.96, count.dtype), count)


@dataclasses.dataclass(frozen=True)
class Lion(rules.Rule):
  """Lion; its slot is the momentum."""

  beta_1: float
  beta_2: float

  def new_values(self, step: Step, gradient: tf.Tensor, old: Values) -> Values:
    value, momentum = old
    beta_1 = tf.constant(self.beta_1, value.dtype)
    beta_2 = tf.constant(self.beta_2, value.dtype)
    direction = tf.sign(momentum * beta_1 + gradient * (1.0 - beta_1))
    momentum = momentum * beta_2 + gradient * (1.0 - beta_2)
    return [value - step.rate * direction, momentum]


def _powers(rule: Any, step: Step) -> tuple[tf.Tensor, tf.Tensor]:
  dtype = step.count.dtype
  return (
    tf.pow(tf.constant(rule.beta_1, dtype), step.count),
    tf.pow(tf.constant(rule.beta_2, dtype), step.count),
  )
