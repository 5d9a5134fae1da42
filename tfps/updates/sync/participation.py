"""Participation of workers in synchronized steps, from start to end.

A worker takes part either in one execution of a known number of steps
(`Attempt`) or, where it reads batches from a queue, in as many executions as it
finds batches for (`QueueParticipation`). In the second case other workers wait
for it only while it has batches.
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
from typing import Any
from typing import NamedTuple
from typing import Protocol

import tensorflow as tf


class StepDecision(NamedTuple):
  """Number of steps that a worker does next, and what other workers do.

  Attributes:
    number: how many steps this worker does.
    finished: whether no work is left for any worker.
    is_idle: whether no worker does any steps.
    is_partial: whether some workers do no steps. They receive the results of
      the others in `Session.settle`; until then no batch counts.
  """

  number: int
  finished: bool
  is_idle: bool
  is_partial: bool = False

  @classmethod
  def alone(cls, ready: int, *, finished: bool) -> 'StepDecision':
    """Returns the decision of a worker that needs no agreement with others.

    Args:
      ready: number of batches at hand.
      finished: whether no work is left.
    """
    return cls(ready, finished, is_idle=not ready)


class Participation(Protocol):
  """Interface of a worker's part in synchronized steps.

  Attributes:
    num_steps: number of steps of the current execution.
    comes_and_goes: whether the number of executions is unknown beforehand, and
      may be 0.
  """

  num_steps: int
  comes_and_goes: bool


class Session(Protocol):
  """Interface of the session that is notified; see `session.SyncSession`."""

  @property
  def worker(self) -> Callable[[], int]:
    """Function that returns the index of the current worker."""

  def expect(self, attempt: Participation) -> None:
    """Notes that an execution was scheduled."""

  def prepare(self, attempt: 'Attempt') -> bool:
    """Returns whether an attempt has steps left, before it is called."""

  def enter(self, attempt: Participation, worker: int) -> None:
    """Notes that a worker begins an execution."""

  def fail(self, attempt: Participation, worker: int) -> None:
    """Notes that an execution failed on a worker, and may be repeated."""

  def leave(self, attempt: Any) -> None:
    """Notes that an execution ended."""


class QueueSession(Session, Protocol):
  """Interface of a session whose workers read batches from a queue."""

  def agree(self, ready: int, *, finished: bool) -> StepDecision:
    """Decides with the other workers how many steps to do.

    Args:
      ready: number of batches at hand.
      finished: whether no work is left.
    """

  def settle(self) -> bool:
    """Copies the results of steps on a queue's batches to all workers.

    Returns:
      Whether the steps of this worker count.
    """

  def step_out(self, worker: int) -> None:
    """Excludes a worker from updates until it executes something again."""


@contextlib.contextmanager
def _entered(
  session: Session, participation: Participation
) -> Iterator[tf.Tensor]:
  """Notifies the session of the start and end of this thread's worker.

  Yields:
    The worker's number, an int64 scalar.
  """
  number = session.worker()
  session.enter(participation, number)
  with tf.device(None):  # a frozen worker would block this process
    worker = tf.constant(number, tf.int64)
  try:
    yield worker
  except BaseException:
    session.fail(participation, number)
    raise
  session.leave(participation)


class Attempt:
  """Calls a function with the number of the worker that executes it.

  Args:
    session: session in which the worker takes part.
    num_steps: number of steps that the function does.
  """

  comes_and_goes = False

  def __init__(self, session: Session, num_steps: int) -> None:
    self._session = session
    self.num_steps = num_steps

  @property
  def args(self) -> tuple[tf.Tensor, ...]:
    """Placeholder of the worker's number, for tracing and scheduling."""
    return (tf.constant(-1, tf.int64),)

  def note(self) -> None:
    """Notifies the session that the function is scheduled."""
    self._session.expect(self)

  def __call__(self, function: Callable[..., Any], *args: Any) -> Any:
    """Calls a function on this thread's worker.

    Args:
      function: function of steps.
      *args: its arguments; the last is replaced by the worker's number.

    Returns:
      The function's result; None if no steps are left to do.
    """
    if not self._session.prepare(self):
      return None
    with _entered(self._session, self) as worker:
      return function(*args[:-1], worker)


class QueueParticipation:
  """Takes part in synchronized steps while the worker has batches of a queue.

  Args:
    session: session in which the worker takes part.

  Attributes:
    num_steps: number of steps of the execution that begins next.
  """

  comes_and_goes = True

  def __init__(self, session: QueueSession) -> None:
    self.num_steps = 0
    self._session = session

  def note(self) -> None:
    """Notifies the session that executions are scheduled."""
    self._session.expect(self)

  @contextlib.contextmanager
  def begun(self) -> Iterator[tuple[tf.Tensor, ...]]:
    """Returns a context in which the worker takes part.

    Yields:
      Arguments of executions after the batches: the worker's number.
    """
    self.num_steps = 0
    with _entered(self._session, self) as worker:
      yield (worker,)

  def agree(self, ready: int, *, finished: bool) -> StepDecision:
    """Returns how many steps to do; see `SyncSession.agree`."""
    return self._session.agree(ready, finished=finished)

  def settle(self) -> bool:
    """Returns whether this worker's steps count; see `SyncSession.settle`."""
    return self._session.settle()

  def step_out(self) -> None:
    """Excludes this thread's worker until it finds batches again.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    self._session.step_out(self._session.worker())
