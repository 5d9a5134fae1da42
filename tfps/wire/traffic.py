"""Counts the bytes that are transferred between workers and ps."""

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from tfps._compat import shared_variables
from tfps.wire import residuals as residuals_lib

PULL, PUSH = 0, 1


@dataclasses.dataclass(frozen=True)
class WireReport:
  """The bytes transferred so far.

  Attributes:
    pulled: bytes from each ps, by its index.
    pushed: bytes to each ps, by its index.
    steps: the number of steps that transferred them.
    pull: the codec of parameters; None if they are sent unchanged.
    push: the codec of gradients; None if they are sent unchanged.
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
  """Sums of the bytes and steps of executions.

  Args:
    num_ps: number of ps.
  """

  def __init__(self, num_ps: int) -> None:
    self._bytes = np.zeros([2, num_ps], np.int64)
    self._steps = 0

  def add(self, counted: Any, num_steps: int) -> None:
    """Adds the counts of an execution.

    Args:
      counted: bytes of shape [2, num_ps]; see `Traffic.end`.
      num_steps: the number of the execution's steps.
    """
    self._bytes += np.asarray(counted, np.int64)
    self._steps += num_steps

  def report(self, pull: Any, push: Any) -> WireReport:
    """Returns a report of all counts so far.

    Args:
      pull: the codec of parameters, or None.
      push: the codec of gradients, or None.
    """
    pulled, pushed = self._bytes.tolist()
    return WireReport(tuple(pulled), tuple(pushed), self._steps, pull, push)


class ProcessTraffic:
  """Counts bytes and steps of all functions in this process.

  Args:
    num_ps: number of ps.
  """

  def __init__(self, num_ps: int) -> None:
    self._num_ps = num_ps
    with tf.init_scope(), tf.device('CPU:0'):
      self._bytes = _zero_counter(f'tfps_bytes_{id(self)}', [2, num_ps])
      self._steps = _zero_counter(f'tfps_steps_{id(self)}', [])

  def add(self, direction: int, ps: int, num_bytes: Any) -> None:
    """Counts bytes of a transfer.

    Args:
      direction: `PULL` from the ps, or `PUSH` to it.
      ps: the index of the ps.
      num_bytes: an int or an integer scalar tensor.
    """
    _add(self._bytes, _one_at(direction, ps, self._num_ps), num_bytes)

  def add_step(self) -> None:
    """Counts one step."""
    _add(self._steps, np.int64(1), 1)

  def take(self) -> tuple[np.ndarray, int]:
    """Returns the bytes and steps since the last call, and resets both."""
    found = []
    for handle in (self._bytes, self._steps):
      value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.int64)
      tf.raw_ops.AssignSubVariableOp(resource=handle, value=value)
      found.append(value.numpy())
    return found[0], int(found[1])


class Traffic:
  """Counts the bytes of one execution, on the task that executes the function.

  Create it while the function is traced. The counts depend on branches taken
  and on numbers of rows, so that most are only known in the execution.

  Args:
    num_ps: number of ps.
  """

  def __init__(self, num_ps: int) -> None:
    self._num_ps = num_ps
    # Static sizes of unconditional transfers; they need no operation. By graph,
    # with how often it is executed.
    self._known: dict[Any, tuple[Any, np.ndarray]] = {}
    self.repeat(1)
    # TensorFlow orders the operations that share a handle.
    self._handle = _zero_counter('tfps_bytes', [2, num_ps])

  def repeat(self, times: Any) -> None:
    """Notes how often the graph that is being traced will be executed.

    Args:
      times: an int, or an integer scalar tensor of the function.
    """
    graph = tf.compat.v1.get_default_graph()
    self._known[graph] = times, np.zeros([2, self._num_ps], np.int64)

  def add(self, direction: int, ps: int, num_bytes: Any) -> None:
    """Counts bytes of a transfer.

    Args:
      direction: `PULL` from the ps, or `PUSH` to it.
      ps: the index of the ps.
      num_bytes: an int or an integer scalar tensor.
    """
    where = _one_at(direction, ps, self._num_ps)
    graph = tf.compat.v1.get_default_graph()
    if graph in self._known and isinstance(num_bytes, int):
      _, known = self._known[graph]
      known += where * num_bytes
    else:
      _add(self._handle, where, num_bytes)

  def end(self) -> tf.Tensor:
    """Returns the bytes by direction and ps: int64 of shape [2, num_ps]."""
    counted = tf.raw_ops.ReadVariableOp(resource=self._handle, dtype=tf.int64)
    for times, known in self._known.values():
      counted += known * tf.cast(times, tf.int64)
    return counted


@dataclasses.dataclass(frozen=True)
class Workspace:
  """State of a function on the task that executes it.

  Create it while the function is traced.

  Attributes:
    traffic: counts transferred bytes; None to count nothing.
    residuals: the residuals of error feedback.
  """

  traffic: Traffic | ProcessTraffic | None
  residuals: residuals_lib.Residuals = dataclasses.field(
    default_factory=residuals_lib.Residuals
  )

  def repeat(self, times: Any) -> None:
    """Notes how often the graph that is being traced will be executed."""
    if isinstance(self.traffic, Traffic):
      self.traffic.repeat(times)

  def counted(self) -> tf.Tensor:
    """Returns the bytes of a function's own traffic: int64 [2, num_ps]."""
    assert isinstance(self.traffic, Traffic)
    return self.traffic.end()


def _zero_counter(name: str, shape: list[int]) -> tf.Tensor:
  handle = shared_variables.handle(name, shape=shape, dtype=tf.int64)
  zeros = tf.zeros(shape, tf.int64)
  tf.raw_ops.AssignVariableOp(resource=handle, value=zeros)
  return handle


def _add(handle: tf.Tensor, where: Any, number: Any) -> None:
  value = where * tf.cast(number, tf.int64)
  tf.raw_ops.AssignAddVariableOp(resource=handle, value=value)


def _one_at(direction: int, ps: int, num_ps: int) -> np.ndarray:
  where = np.zeros([2, num_ps], np.int64)
  where[direction, ps] = 1
  return where
