"""Two ps of synchronized steps in this process, one transition at a time.

The session, the protocol, its state, the queues and the sums are the package's.
Each transition is traced once, as a function that is called in any order.
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import functools
from typing import Any
from typing import NamedTuple
from unittest import mock

import numpy as np
import tensorflow as tf

from tfps.updates import policies
from tfps.updates.sync import aggregation
from tfps.updates.sync import protocol_ops
from tfps.updates.sync import ps_state
from tfps.updates.sync import session as session_lib
from tfps.updates.sync import wait_queue
from tfps.variables import placement_ledger

NUM_PS = 2
NUM_POINTS = 2
MAX_GRADIENTS = 1024

_NUMBER = tf.TensorSpec([], tf.int64)


class Found(NamedTuple):
  """Outcome of `SyncProtocol.look`."""

  leads: int
  waits: int
  version: int
  quorum: int
  enough: int
  counts: int


class SyncPs:
  """Synchronization state, sums and queues, and functions that change them.

  A gradient is a number: it is the row of that number, of a table on ps:0 and
  of a dense variable on ps:1, so that a mean tells what it was made of.

  Args:
    num_workers: number of workers.
    spare: number of backup workers.

  Attributes:
    session: session of all workers.
    state: as the session's.
  """

  def __init__(self, *, num_workers: int, spare: int) -> None:
    name = f'model_{spare}'
    self.state = ps_state.SyncState(
      lambda ps, name, value: tf.Variable(value),
      num_ps=NUM_PS,
      num_workers=num_workers,
    )
    self.session = session_lib.SyncSession(
      policies.Sync(backup_workers=spare),
      self.state,
      name=name,
      worker=lambda: 0,
    )
    self._ops = self.session.sync_ops
    self._queues = [
      wait_queue.for_point(point, name, self.state.device)
      for point in range(NUM_POINTS)
    ]
    self._variables = [
      [tf.Variable(tf.zeros([MAX_GRADIENTS, 1])) for _ in range(NUM_PS)]
      for _ in range(NUM_POINTS)
    ]
    self._first = [
      (variable, variable.numpy())
      for variable in (
        self.state.points,
        self.state.workers.members,
        self.state.workers.steps,
        self.state.workers.reached,
        self.state.executions,
        *self.state.tags,
      )
    ]
    self._functions: dict[Any, Any] = {}

  def reset(self) -> None:
    """Empties everything, for the next test."""
    for variable, value in self._first:
      variable.assign(value)
    for point in range(NUM_POINTS):
      for parity in range(2):
        while self.num_tokens(point, parity):
          self.wait(point, parity)

  @contextlib.contextmanager
  def at(self, now: int) -> Iterator[None]:
    """Returns a context in which sessions start at a time."""
    with mock.patch.object(session_lib, '_now', return_value=now):
      yield

  def begin(self, worker: int) -> tuple[bool, list[int], int]:
    """Returns whether a worker waits, the versions, and the quorum."""

    def begin(worker: tf.Tensor) -> tf.Tensor:
      found = self._locked('begin', worker)
      return _packed(*found)

    waits, *versions, quorum = self._call('begin', begin, worker)
    return bool(waits), versions[:NUM_POINTS], quorum

  def leave_if_late(self, point: int, worker: int, version: int) -> None:
    """Takes a worker out of its step if it is late at a point."""

    def leave(worker: tf.Tensor, version: tf.Tensor) -> tf.Tensor:
      return _packed(self._locked('leave_step', point, worker, version))

    self._call(('leave', point), leave, worker, version)

  def look(
    self,
    point: int,
    worker: int,
    version: int,
    step: int,
    is_added: bool,
    arrives: int,
  ) -> Found:
    """Decides whether a worker leads, waits or continues."""

    def look(*numbers: tf.Tensor) -> tf.Tensor:
      *told, is_added = numbers
      args = *told, is_added > 0, arrives
      return _packed(*self._locked('look', point, *args))

    key = ('look', point, arrives)
    return Found(*self._call(key, look, worker, version, step, is_added))

  def release(
    self, point: int, version: int, enough: int
  ) -> protocol_ops.StepTicket:
    """Publishes the next version."""

    def release(version: tf.Tensor, enough: tf.Tensor) -> tf.Tensor:
      return _packed(*self._ops.release(point, version, enough))

    found = self._call(('release', point), release, version, enough)
    return protocol_ops.StepTicket(*found)

  def end(self, worker: int) -> None:
    """Counts an execution that ended."""

    def end(worker: tf.Tensor) -> tf.Tensor:
      with tf.control_dependencies([self._ops.end(worker)]):
        return _packed(worker)

    self._call('end', end, worker)

  def add(
    self, point: int, ps: int, gradient: int, version: int, quorum: int
  ) -> bool:
    """Adds a gradient to a sum of a ps; returns whether it was in time."""

    def add(
      gradient: tf.Tensor, version: tf.Tensor, quorum: tf.Tensor
    ) -> tf.Tensor:
      pieces = [self._piece(point, ps, gradient)]
      ticket = protocol_ops.StepTicket(version, quorum)
      sums = self._sums(point, ps, pieces)
      return _packed(sums.add(pieces, self._ops.for_sums(ticket)))

    key = ('add', point, ps)
    return bool(*self._call(key, add, gradient, version, quorum))

  def take(self, point: int, ps: int, version: int) -> list[int]:
    """Returns the gradients of which the mean of a version was made.

    Raises:
      tf.errors.InvalidArgumentError: they are no longer there.
    """

    def take(version: tf.Tensor) -> tf.Tensor:
      pieces = [self._piece(point, ps, tf.constant(0, tf.int64))]
      (mean,) = self._sums(point, ps, pieces).take_means(version)
      return tf.convert_to_tensor(mean)

    mean = self._call(('take', point, ps), take, version, as_is=True)[:, 0]
    gradients = np.flatnonzero(mean)
    # Each of them once.
    np.testing.assert_allclose(mean[gradients], 1 / len(gradients), rtol=1e-6)
    return gradients.tolist()

  def num_tokens(self, point: int, version: int) -> int:
    """Returns the number of workers that may cease to wait at a version."""

    def sizes() -> tf.Tensor:
      return tf.stack(
        [
          tf.raw_ops.QueueSizeV2(handle=queue._queue(parity))
          for queue in self._queues
          for parity in range(2)
        ]
      )

    return self._call('sizes', sizes)[2 * point + version % 2]

  def wait(self, point: int, version: int) -> None:
    """Takes a token, which has to be there."""

    def wait(version: tf.Tensor) -> tf.Tensor:
      with tf.control_dependencies([self._queues[point].wait(version)]):
        return _packed(version)

    self._call(('wait', point), wait, version)

  def _locked(self, name: str, *args: Any) -> Any:
    protocol = self._ops._protocol
    return self.state.locked(getattr(protocol, name), *args)

  def _piece(
    self, point: int, ps: int, gradient: tf.Tensor
  ) -> aggregation.Piece:
    variable = self._variables[point][ps]
    if ps:
      return aggregation.Piece(
        variable, tf.one_hot(gradient, MAX_GRADIENTS)[:, tf.newaxis]
      )
    return aggregation.Piece(
      variable, tf.IndexedSlices(tf.ones([1, 1]), gradient[tf.newaxis])
    )

  def _sums(
    self, point: int, ps: int, pieces: list[aggregation.Piece]
  ) -> aggregation.GradientAggregator:
    # All variables are in this process, which is neither ps.
    with mock.patch.object(placement_ledger, 'ps_index', return_value=ps):
      return aggregation.GradientAggregator(
        self.state, self.session.name, point, pieces
      )

  def _call(
    self,
    key: Any,
    function: Callable[..., tf.Tensor],
    *numbers: int,
    as_is: bool = False,
  ) -> Any:
    if key not in self._functions:
      made = tf.function(function, autograph=False)
      specs = [_NUMBER] * len(numbers)
      self._functions[key] = made.get_concrete_function(*specs)
    given = [tf.constant(number, tf.int64) for number in numbers]
    found = self._functions[key](*given).numpy()
    return found if as_is else found.tolist()


def _packed(*tensors: Any) -> tf.Tensor:
  flat = [tf.reshape(tf.cast(tensor, tf.int64), [-1]) for tensor in tensors]
  return tf.concat(flat, 0)


@functools.cache
def with_spare(spare: int, num_workers: int) -> SyncPs:
  """Returns the ps of all tests with as many workers, of which some are spare.

  Args:
    spare: number of backup workers.
    num_workers: number of workers.
  """
  return SyncPs(num_workers=num_workers, spare=spare)
