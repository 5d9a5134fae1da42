"""Ends of the datasets that workers read themselves, in `fit` and `evaluate`.

A worker's dataset may end before the epoch does. A step that finds no batch is
not done; it is left to the workers that still have some. Once no worker has
any, the epoch ends.
"""

from collections.abc import Callable
import time
from typing import Any

from absl import logging
import tensorflow as tf

from tfps._compat import executors
from tfps._compat import writes
from tfps._utils import timeouts
from tfps.updates import sessions

# Result of an execution for which the worker had no batch, or too few.
_NONE: tuple[()] = ()


class DataEnds:
  """Ends of the workers' datasets, and the steps that they have left over.

  Attributes:
    num_left: steps that were scheduled, but for which there was no batch.
  """

  def __init__(self) -> None:
    self.num_left = 0
    self._ended: dict[str, Any] = {}  # iterators by worker
    self._idle_since: float | None = None

  def attempt(
    self,
    attempt: Callable[..., Any] | None,
    sync_session: sessions.Session,
  ) -> Callable[..., Any]:
    """Returns an attempt at an execution that may find no batch.

    Args:
      attempt: calls a function with its arguments, of which the first are the
        worker's iterator and the number of steps; None to call it once.
      sync_session: synchronizes the workers, if they are; the others go on
        without one that has no batches.
    """

    def call(function: Callable[..., Any], iterator: Any, *args: Any) -> Any:
      worker = writes.current_device()
      if self._ended.get(worker) is not iterator:
        try:
          if attempt is None:
            return function(iterator, *args)
          return attempt(function, iterator, *args)
        except tf.errors.OutOfRangeError:
          executors.forget_error()
          self._ended[worker] = iterator
          _warn(worker, int(args[0]))
      sync_session.leave(attempt)
      sync_session.end(sync_session.worker())
      return _NONE

    call.note = getattr(attempt, 'note', lambda: None)  # type: ignore[attr-defined]
    return call

  def note(self, fetched: Any, num_steps: int) -> None:
    """Notes the result of an attempt at an execution of `num_steps` steps."""
    if fetched != _NONE:
      self._idle_since = None
      return
    self.num_left += num_steps
    self._idle_since = self._idle_since or time.monotonic()
    time.sleep(timeouts.current().short_poll_secs)  # others' turn

  def take(self, num_steps: int, num_workers: int) -> int:
    """Takes up to `num_steps` steps that are left, to schedule them.

    Args:
      num_steps: how many steps to take.
      num_workers: how many workers there are.

    Returns:
      How many were taken; 0 if none is left, or no worker has batches.
    """
    taken = 0 if self.are_all(num_workers) else min(num_steps, self.num_left)
    self.num_left -= taken
    return taken

  def are_all(self, num_workers: int) -> bool:
    """Returns whether no worker has batches; a lost one has none for long."""
    if len(self._ended) >= num_workers:
      return True
    if self._idle_since is None:
      return False
    idle_secs = time.monotonic() - self._idle_since
    return idle_secs > timeouts.current().unknown_worker_secs


def _warn(worker: str, num_steps: int) -> None:
  if num_steps > 1:
    logging.warning(
      'The data of %s ended within an execution of %d steps. Those that were '
      'done are in the variables, but not in the metrics.',
      worker,
      num_steps,
    )
