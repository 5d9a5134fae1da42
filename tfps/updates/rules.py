"""Update rules: formulas by which optimizers compute new values.

A rule is a formula for tensors of any shape, the same as Keras', operation by
operation, so that values are equal to the last bit. It serves a variable, a
shard or some of its rows.

Gradient descent and momentum also know TensorFlow's single operation for them.
Other such operations compute something else: Adam's takes the decay rates' 1 -
beta in single precision, Adagrad's and RMSprop's add epsilon elsewhere or need
one slot more. Nor are they faster: time goes to the locks of a step, not to the
number of operations.
"""

from collections.abc import Sequence
import dataclasses
from typing import Any
from typing import NamedTuple

import tensorflow as tf

Values = Sequence[tf.Tensor]


class Step(NamedTuple):
  """Parameters common to the variables of one update; a `tf.nest` structure.

  Attributes:
    rate: learning rate.
    count: number of the update; the first is 1.
    product: product of the momenta up to this update, for Nadam.
  """

  rate: Any
  count: Any
  product: Any = 1.0

  def cast(self, dtype: tf.DType) -> 'Step':
    """Returns the step in a variable's type, in which Keras computes."""
    return Step(*(tf.cast(value, dtype) for value in self))


class Rule:
  """Formula that updates a variable and its slots.

  Attributes:
    keeps_rows: whether rows without a gradient stay unchanged, so that the
      other rows suffice.
    counts: whether it depends on more of a step than the rate.
  """

  keeps_rows = False
  counts = False

  def needed(self, step: Step) -> Step:
    """Returns the step with only the tensors on which the rule depends."""
    return step if self.counts else Step(step.rate, 0)

  def new_values(self, step: Step, gradient: tf.Tensor, old: Values) -> Values:
    """Returns the new values of the variable and its slots.

    Args:
      step: parameters of the update, in the variable's type.
      gradient: gradient in the shape of the values.
      old: values of the variable and its slots, in order.
    """
    raise NotImplementedError

  def run_kernel(
    self, step: Step, gradient: Any, variables: Sequence[Any]
  ) -> list[Any] | None:
    """Runs the update as a single atomic operation.

    Args:
      step: parameters of the update, in the variable's type.
      gradient: tensor, or `tf.IndexedSlices` if the rule keeps rows.
      variables: the variable and its slots.

    Returns:
      The operation, or None if TensorFlow has none.
    """
    del step, gradient, variables
    return None


@dataclasses.dataclass(frozen=True)
class Sgd(Rule):
  """Gradient descent."""

  keeps_rows = True

  def new_values(self, step: Step, gradient: tf.Tensor, old: Values) -> Values:
    return [old[0] - gradient * step.rate]

  def run_kernel(
    self, step: Step, gradient: Any, variables: Sequence[Any]
  ) -> list[Any] | None:
    (variable,) = variables
    if isinstance(gradient, tf.IndexedSlices):
      # Unlike `scatter_sub`, it takes an exclusive lock.
      return [
        tf.raw_ops.ResourceScatterNdSub(
          ref=variable.handle,
          indices=gradient.indices[:, tf.newaxis],
          updates=gradient.values * step.rate,
        )
      ]
    return [
      tf.raw_ops.ResourceApplyGradientDescent(
        var=variable.handle, alpha=step.rate, delta=gradient, use_locking=True
      )
    ]


@dataclasses.dataclass(frozen=True)
class Momentum(Rule):
  """Gradient descent with momentum, which is the slot."""

  momentum: float
  nesterov: bool = False

  def new_values(self, step: Step, gradient: tf.Tensor, old: Values) -> Values:
    value, velocity = old
    descent = gradient * step.rate
    velocity = velocity * self.momentum - descent
    ahead = velocity * self.momentum - descent if self.nesterov else velocity
    return [value + ahead, velocity]

  def run_kernel(
    self, step: Step, gradient: Any, variables: Sequence[Any]
  ) -> list[Any] | None:
    variable, velocity = variables
    return [
      tf.raw_ops.ResourceApplyKerasMomentum(
        var=variable.handle,
        accum=velocity.handle,
        lr=step.rate,
        grad=gradient,
        momentum=tf.constant(self.momentum, variable.dtype),
        use_locking=True,
        use_nesterov=self.nesterov,
      )
    ]


@dataclasses.dataclass(frozen=True)
class Adagrad(Rule):
  """Adagrad; its slot is the sum of squared gradients."""

  epsilon: float
  keeps_rows = True

  def new_values(self, step: Step, gradient: tf.Tensor, old: Values) -> Values:
    value, total = old
    total = total + tf.square(gradient)
    root = tf.sqrt(total + self.epsilon)
    return [value - step.rate * gradient / root, total]


@dataclasses.dataclass(frozen=True)
class RmsProp(Rule):
  """RMSprop; slots: velocity, then momentum and mean gradient if in use."""

  rho: float
  momentum: float
  epsilon: float
  centered: bool = False

  def new_values(self, step: Step, gradient: tf.Tensor, old: Values) -> Values:
    value, velocity, *others = old
    rho = self.rho
    velocity = rho * velocity + (1 - rho) * tf.square(gradient)
    new, below = [velocity], velocity + self.epsilon
    if self.centered:
      average = rho * others.pop() + (1 - rho) * gradient
      below = velocity - tf.square(average) + self.epsilon
      new.append(average)
    descent = step.rate * gradient / tf.sqrt(below)
    if self.momentum > 0:
      descent = self.momentum * others.pop() + descent
      new.insert(1, descent)
    return [value - descent, *new]


@dataclasses.dataclass(frozen=True)
class Adadelta(Rule):
  """Adadelta; slots: means of squared gradients and of squared changes."""

  rho: float
  epsilon: float

  def new_values(self, step: Step, gradient: tf.Tensor, old: Values) -> Values:
    value, gradients, changes = old
    rho = self.rho
    gradients = rho * gradients + (1 - rho) * tf.square(gradient)
    above = tf.sqrt(changes + self.epsilon) * gradient
    change = -(above / tf.sqrt(gradients + self.epsilon))
    changes = rho * changes + (1 - rho) * tf.square(change)
    return [value + step.rate * change, gradients, changes]


@dataclasses.dataclass(frozen=True)
class Ftrl(Rule):
  """FTRL; slots: the sum of squared gradients and the linear term."""

  power: float
  l1: float
  l2: float
  shrinkage: float
  beta: float

  def new_values(self, step: Step, gradient: tf.Tensor, old: Values) -> Values:
    value, total, linear = old
    shrunk = gradient + 2 * self.shrinkage * value
    new_total = total + tf.square(gradient)
    growth = tf.pow(new_total, -self.power) - tf.pow(total, -self.power)
    linear = linear + (shrunk - growth / step.rate * value)
    below = tf.pow(new_total, -self.power) / step.rate + 2 * self._l2(step)
    clipped = tf.clip_by_value(linear, -self.l1, self.l1)
    return [(clipped - linear) / below, new_total, linear]

  def _l2(self, step: Step) -> Any:
    return self.l2 + self.beta / (2.0 * step.rate)
