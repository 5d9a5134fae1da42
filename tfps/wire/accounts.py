"""Counts the bytes that cross between workers and ps."""

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from tfps._compat import shared_variables

PULL, PUSH = 0, 1


@dataclasses.dataclass(frozen=True)
class WireReport:
  """What has crossed so far.

  Attributes:
    pulled: bytes from each ps, by its index.
    pushed: bytes to each ps.
    steps: in how many steps.
    pull: the codec of parameters; None if they travel as they are.
    push: the codec of gradients.
  """

  pulled: tuple[int, ...]
  pushed: tuple[int, ...]
  steps: int
  pull: Any = None
  push: Any = None

  def __str__(self) -> str:
    steps = max(self.steps, 1)
    lines = [
      f'{"task":<8}{"pulled":>16}{"pushed":>16}{"pulled/step":>16}'
      f'{"pushed/step":>16}'
    ]
    for ps, (pulled, pushed) in enumerate(
      zip(self.pulled, self.pushed, strict=True)
    ):
      lines.append(
        f'{f"ps:{ps}":<8}{pulled:>16,}{pushed:>16,}{pulled / steps:>16,.0f}'
        f'{pushed / steps:>16,.0f}'
      )
    lines.append(
      f'{self.steps:,} steps; pull: {self.pull or "as it is"}, '
      f'push: {self.push or "as it is"}'
    )
    return '\n'.join(lines)


class Totals:
  """Adds up what executions have counted.

  Args:
    num_ps: how many ps there are.
  """

  def __init__(self, num_ps: int) -> None:
    self._bytes = np.zeros([2, num_ps], np.int64)
    self._steps = 0

  def add(self, counted: Any, num_steps: int) -> None:
    """Adds what `Accounts.end` gave."""
    self._bytes += np.asarray(counted, np.int64)
    self._steps += num_steps

  def report(self, pull: Any, push: Any) -> WireReport:
    """All there is so far."""
    pulled, pushed = self._bytes.tolist()
    return WireReport(tuple(pulled), tuple(pushed), self._steps, pull, push)


class Accounts:
  """Counts while a function is executed, on the task that does so; from zero.

  Branches may or may not be taken and rows may be few or many, so it cannot be
  told beforehand.

  Args:
    num_ps: how many ps there are.
  """

  def __init__(self, num_ps: int) -> None:
    self._num_ps = num_ps
    # One operation for the handle: TensorFlow keeps in order what shares it.
    self._handle = shared_variables.handle(
      'tfps_bytes', shape=[2, self._num_ps], dtype=tf.int64
    )
    zeros = tf.zeros([2, self._num_ps], tf.int64)
    tf.raw_ops.AssignVariableOp(resource=self._handle, value=zeros)

  def add(self, direction: int, ps: int, num_bytes: Any) -> None:
    """Counts bytes that come from a ps or go to it."""
    where = np.zeros([2, self._num_ps], np.int64)
    where[direction, ps] = 1
    tf.raw_ops.AssignAddVariableOp(
      resource=self._handle, value=where * tf.cast(num_bytes, tf.int64)
    )

  def end(self) -> tf.Tensor:
    """The bytes of both directions, by ps: int64 of shape [2, num_ps]."""
    return tf.raw_ops.ReadVariableOp(resource=self._handle, dtype=tf.int64)
