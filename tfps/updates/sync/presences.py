"""What a worker is at in meetings, from its beginning to its end."""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
from typing import Any
from typing import Protocol

import tensorflow as tf


class Participation(Protocol):
  """That of a worker, for as long as it is at what it was given.

  Attributes:
    num_steps: how many it does now.
    comes_and_goes: whether it may execute nothing, or several things.
  """

  num_steps: int
  comes_and_goes: bool


class SyncSession(Protocol):
  """Who is told; see `sync_session.Meetings`."""

  worker: Callable[[], int]

  def expect(self, attempt: Participation) -> None: ...
  def take_up(self, attempt: 'Attempt') -> bool: ...
  def enter(self, attempt: Participation, worker: int) -> None: ...
  def fail(self, attempt: Participation, worker: int) -> None: ...
  def leave(self, attempt: Any) -> None: ...


@contextlib.contextmanager
def begun(
  sync_session: SyncSession, presence: Participation
) -> Iterator[tf.Tensor]:
  """In which the worker here is at something; its number."""
  number = sync_session.worker()
  sync_session.enter(presence, number)
  with tf.device(None):  # on a frozen worker it would hold up this process
    worker = tf.constant(number, tf.int64)
  try:
    yield worker
  except BaseException:
    sync_session.fail(presence, number)
    raise
  sync_session.leave(presence)


class Attempt:
  """Calls a function with the number of the worker that executes it.

  Args:
    sync_session: that it takes part in.
    num_steps: of the function.
  """

  comes_and_goes = False

  def __init__(self, sync_session: SyncSession, num_steps: int) -> None:
    self._sync_session = sync_session
    self.num_steps = num_steps

  @property
  def args(self) -> tuple[tf.Tensor, ...]:
    """What stands for the worker until it is known."""
    return (tf.constant(-1, tf.int64),)

  def note(self) -> None:
    """To be called once it is scheduled."""
    self._sync_session.expect(self)

  def __call__(self, function: Callable[..., Any], *args: Any) -> Any:
    """The function's result; None if nothing is left to do."""
    if not self._sync_session.take_up(self):
      return None
    with begun(self._sync_session, self) as worker:
      return function(*args[:-1], worker)
