"""Steppers: what surrounds each step of a function that is being traced."""

from collections.abc import Callable
from collections.abc import Collection
import contextlib
from typing import Any

import tensorflow as tf


class Stepper:
  """Base class of steppers, which log steps or synchronize them.

  Attributes:
    marked: the ring buffers of the step log that the steps are written to.
    waits: whether steps wait for those of other workers.
  """

  marked: Collection[int] = frozenset()
  waits = True

  def state(self) -> tuple[tf.Tensor, ...]:
    """Returns what the next step needs of those before it."""
    raise NotImplementedError

  def after(self, num_steps: Any, *state: tf.Tensor) -> 'Stepper':
    """Returns the stepper of steps that follow others, for a loop.

    Args:
      num_steps: how many steps there were before.
      *state: the `state` after them.
    """
    raise NotImplementedError

  def step(self, number: Any) -> contextlib.AbstractContextManager[None]:
    """Returns a context in which one step is traced.

    Args:
      number: the step's, from 1.
    """
    raise NotImplementedError

  def num_counted(self, num_steps: tf.Tensor | int) -> tf.Tensor:
    """Returns how many steps count, an int64 scalar; all if none can be late.

    Args:
      num_steps: how many there are.
    """
    return tf.cast(num_steps, tf.int64)

  def count_together(self, count: Callable[[], object]) -> None:
    """Counts all steps at once, unless they are counted one by one.

    Args:
      count: counts them in the function that is being traced.
    """
