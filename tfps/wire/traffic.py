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
    """Adds what `Traffic.end` gave."""
    self._bytes += np.asarray(counted, np.int64)
    self._steps += num_steps

  def report(self, pull: Any, push: Any) -> WireReport:
    """All there is so far."""
    pulled, pushed = self._bytes.tolist()
    return WireReport(tuple(pulled), tuple(pushed), self._steps, pull, push)


class Running:
  """Counts bytes and steps in this process, over all functions.

  Args:
    num_ps: how many ps there are.
  """

  def __init__(self, num_ps: int) -> None:
    self._num_ps = num_ps
    with tf.init_scope(), tf.device('CPU:0'):
      self._bytes = _from_zero(f'tfps_bytes_{id(self)}', [2, num_ps])
      self._steps = _from_zero(f'tfps_steps_{id(self)}', [])

  def add(self, direction: int, ps: int, num_bytes: Any) -> None:
    """Counts bytes that come from a ps or go to it."""
    _add(self._bytes, _at(direction, ps, self._num_ps), num_bytes)

  def add_step(self) -> None:
    """Counts a step."""
    _add(self._steps, np.int64(1), 1)

  def take(self) -> tuple[np.ndarray, int]:
    """The bytes and the steps since the last time."""
    found = []
    for handle in (self._bytes, self._steps):
      value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.int64)
      tf.raw_ops.AssignSubVariableOp(resource=handle, value=value)
      found.append(value.numpy())
    return found[0], int(found[1])


class Traffic:
  """Counts while a function is executed, on the task that does so; from zero.

  Branches may or may not be taken and rows may be few or many, so not all of it
  can be told beforehand.

  Args:
    num_ps: how many ps there are.
  """

  def __init__(self, num_ps: int) -> None:
    self._num_ps = num_ps
    self._graph = tf.compat.v1.get_default_graph()
    # What crosses once in each execution, and takes no operation to count.
    self._known = np.zeros([2, num_ps], np.int64)
    # One operation for the handle: TensorFlow keeps in order what shares it.
    self._handle = _from_zero('tfps_bytes', [2, num_ps])

  def add(self, direction: int, ps: int, num_bytes: Any) -> None:
    """Counts bytes that come from a ps or go to it."""
    where = _at(direction, ps, self._num_ps)
    is_once = tf.compat.v1.get_default_graph() is self._graph
    if is_once and isinstance(num_bytes, int):
      self._known += where * num_bytes
    else:
      _add(self._handle, where, num_bytes)

  def end(self) -> tf.Tensor:
    """The bytes of both directions, by ps: int64 of shape [2, num_ps]."""
    counted = tf.raw_ops.ReadVariableOp(resource=self._handle, dtype=tf.int64)
    return counted + self._known


def _from_zero(name: str, shape: list[int]) -> tf.Tensor:
  handle = shared_variables.handle(name, shape=shape, dtype=tf.int64)
  zeros = tf.zeros(shape, tf.int64)
  tf.raw_ops.AssignVariableOp(resource=handle, value=zeros)
  return handle


def _add(handle: tf.Tensor, where: Any, number: Any) -> None:
  value = where * tf.cast(number, tf.int64)
  tf.raw_ops.AssignAddVariableOp(resource=handle, value=value)


def _at(direction: int, ps: int, num_ps: int) -> np.ndarray:
  where = np.zeros([2, num_ps], np.int64)
  where[direction, ps] = 1
  return where
