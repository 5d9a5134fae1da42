"""Has nobody do anything on a ps for a while, or says who would not stop."""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib

from absl import logging

from tfps import errors
from tfps._utils import quiesce_lock


@contextlib.contextmanager
def alone(
  gate: quiesce_lock.QuiesceLock,
  timeout_secs: float,
  tell: Callable[[bool], object] = lambda rest: None,
) -> Iterator[None]:
  """Keeps others out of a gate, and waits for those inside.

  Args:
    gate: within which something is done on ps.
    timeout_secs: how long to wait.
    tell: as for `Gate.closed`.

  Raises:
    errors.DeadlineError: names those who are not done.
  """
  with contextlib.ExitStack() as stack:
    try:
      stack.enter_context(gate.closed(tell, timeout_secs))
    except quiesce_lock.OccupiedError as error:
      raise errors.DeadlineError(
        f'After {timeout_secs:g} seconds, {", ".join(error.names)} is not done '
        'with what it does on the ps, which has to stop while variables are '
        'saved or put back. If it is a task that has stopped answering, start '
        'it again.'
      ) from error
    yield


def close(
  gate: quiesce_lock.QuiesceLock,
  timeout_secs: float,
  tell: Callable[[bool], object] = lambda rest: None,
) -> bool:
  """As `alone`, for ever, by who ends then; whether it could."""
  try:
    gate.close(tell, timeout_secs)
  except quiesce_lock.OccupiedError as error:
    logging.warning('No last cut is made: %s', error)
    return False
  return True
