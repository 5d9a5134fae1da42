"""Numbers of an optimizer's steps, for what is to happen every few steps.

`optimizer.iterations` counts steps once they are applied. Two workers may read
the same number of it, and none of them another one.
"""

from typing import Any
import weakref

import tensorflow as tf

from tfps.keras import shards
from tfps.updates import apply as apply_lib
from tfps.updates import ps_lock

# How many steps may be under way. Beyond it, `iterations` was set back.
_MOST_UNDER_WAY = 1000

# By optimizer, the number of the next step.
_next: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def draw(optimizer: Any) -> tf.Tensor:
  """Draws the number of a step, from 0 on, which no other step has.

  With one worker it is the count of steps before it.

  Args:
    optimizer: an optimizer of Keras that is built.

  Returns:
    A scalar of the type of `iterations`.
  """
  iterations = optimizer._iterations.value  # the property may divide it
  following = _variable(optimizer, iterations)
  drawn: list[tf.Tensor] = []

  def take() -> list[Any]:
    number, applied = apply_lib.read(following), apply_lib.read(iterations)
    was_set = (number < applied) | (number > applied + _MOST_UNDER_WAY)
    drawn.append(tf.where(was_set, applied, number))
    return [apply_lib.write(following, drawn[0] + 1)]

  ps_lock.run([ps_lock.Job(iterations, take)])
  return drawn[0]


def is_last_of(number: tf.Tensor, every: int) -> tf.Tensor:
  """Returns whether a step is the last one of so many steps."""
  return (number + 1) % every == 0


def _variable(optimizer: Any, iterations: Any) -> Any:
  if optimizer not in _next:
    extended = optimizer._distribution_strategy.extended
    with (
      shards.making_variables(optimizer),
      extended.colocate_vars_with(iterations),
    ):
      _next[optimizer] = tf.Variable(
        int(apply_lib.read(iterations)),
        trainable=False,
        dtype=iterations.dtype,
        name=f'{optimizer.name}/next_step',
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
      )
  return _next[optimizer]
