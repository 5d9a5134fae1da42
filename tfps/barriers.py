"""Places in a program where every worker waits for all the others."""

from collections.abc import Callable
from collections.abc import Sequence
import time
from typing import Any

import tensorflow as tf

from tfps import _deadline
from tfps import _ledger
from tfps import cluster as cluster_lib
from tfps import errors
from tfps import shared_variables

_POLL_SECS = 0.05
_DEVICE = _ledger.ps_device(0)


class Barriers:
  """Barriers by name, each a row of counts on a ps.

  A worker that has come adds 1 to its own count and waits until no count is
  lower. So a barrier can be used again, and tells who is missing.

  Args:
    shared: makes the counts.
    tasks: all who come.
    own: this process' task, one of them.
    notice: gets each variable that was made.
  """

  def __init__(
    self,
    shared: shared_variables.SharedVariables,
    tasks: Sequence[cluster_lib.Task],
    own: cluster_lib.Task,
    notice: Callable[[Any], object],
  ) -> None:
    self._shared = shared
    self._notice = notice
    self._tasks = tuple(tasks)
    self._own = self._tasks.index(own)
    self._counts: dict[str, shared_variables.SharedVariable] = {}

  def wait(self, name: str, timeout_secs: float | None) -> None:
    """See `BetweenGraphStrategy.barrier`."""
    deadline = _deadline.after(timeout_secs)
    counts = self._find_or_make(name, timeout_secs)
    counts.scatter_add(
      tf.IndexedSlices(tf.constant([1], tf.int64), [self._own])
    )
    turn = counts.numpy()[self._own]
    while (counts.numpy() < turn).any():
      if _deadline.is_over(deadline):
        raise errors.DeadlineError(
          f'After {timeout_secs:g} seconds, {self._missing(counts, turn)} '
          f'did not come to the barrier {name!r}.'
        )
      time.sleep(_POLL_SECS)

  def wait_for_chief(self, name: str, timeout_secs: float | None) -> None:
    """See `BetweenGraphStrategy.wait_for_chief`."""
    with tf.device(_DEVICE), tf.name_scope('tfps/chief/'):
      made = self._shared.make_within(
        timeout_secs, name=name, initial_value=True
      )
    self._notice(made)

  def _find_or_make(
    self, name: str, timeout_secs: float | None
  ) -> shared_variables.SharedVariable:
    if name not in self._counts:
      with tf.device(_DEVICE), tf.name_scope('tfps/barrier/'):
        self._counts[name] = self._shared.make_within(
          timeout_secs,
          name=name,
          initial_value=tf.zeros([len(self._tasks)], tf.int64),
          trainable=False,
        )
      self._notice(self._counts[name])
    return self._counts[name]

  def _missing(self, counts: shared_variables.SharedVariable, turn: int) -> str:
    late = counts.numpy() < turn
    return ', '.join(str(self._tasks[i]) for i in late.nonzero()[0])
