"""Barriers at which every worker waits for all others."""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Sequence
import time
from typing import Any

import numpy as np
import tensorflow as tf

from tfps import errors
from tfps._utils import deadlines
from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib
from tfps.variables import placement_ledger
from tfps.variables import shared_variables

_DEVICE = placement_ledger.ps_device(0)
_NUM_SLOTS = 1024


class Barriers:
  """Reusable barriers by name, each a row of counters on a ps.

  State: for each task, in how many rounds it arrived, and whether the cluster
  of the process that made the barrier lists the task. An arriving task sets its
  counter to the number of its round, and polls until no counter is lower; tasks
  with a lower one are missing. It waits for all listed tasks, and then for
  tasks that joined later, while they may be alive. A task that joined begins
  with the round of the others.

  A listed task that is started again goes back to the round at which it had
  arrived if others are still missing there, as it cannot have passed. Otherwise
  it arrives at the next round: counters do not tell whether its program comes
  to the same place again, or went on behind it.

  Args:
    shared: makes the counters.
    tasks: all tasks that this process' cluster lists.
    own: this process' task, one of them.
    notice: gets each variable that was made.
    joined: returns the tasks that joined later and may be alive.
    surviving: calls a function that writes on a ps, again after a repair.

  Raises:
    ValueError: there are too many tasks.
  """

  def __init__(
    self,
    shared: shared_variables.SharedVariables,
    tasks: Sequence[spec_lib.Task],
    own: spec_lib.Task,
    notice: Callable[[Any], object],
    *,
    joined: Callable[[], Collection[spec_lib.Task]] = tuple,
    surviving: Callable[[Callable[[], Any]], Any] = lambda function: function(),
  ) -> None:
    self._shared = shared
    self._notice = notice
    self._listed = np.zeros([_NUM_SLOTS], np.int64)
    self._listed[[_slot(task) for task in tasks]] = 1
    self._own = _slot(own)
    self._joined = joined
    self._surviving = surviving
    self._rows: dict[str, shared_variables.SharedVariable] = {}

  def wait(self, name: str, timeout_secs: float | None) -> None:
    """Waits at a barrier; see `BetweenGraphStrategy.barrier`."""
    deadline = deadlines.after(timeout_secs)
    is_first = name not in self._rows
    row = self._find_or_make(name, timeout_secs)
    state = _State(row.numpy())
    arrival = state.next_round(self._own, is_first=is_first)
    self._surviving(lambda: _arrive(row, self._own, arrival))
    if state.is_complete(arrival):
      return
    joined = _JoinedTasks(self._joined)
    while late := _State(row.numpy()).late(arrival, joined):
      if deadlines.is_over(deadline):
        raise errors.DeadlineError(
          f'After {timeout_secs:g} seconds, {", ".join(map(str, late))} '
          f'did not come to the barrier {name!r}.'
        )
      time.sleep(timeouts.current().poll_secs)

  def wait_for_chief(self, name: str, timeout_secs: float | None) -> None:
    """Waits for the chief; see `BetweenGraphStrategy.wait_for_chief`."""
    self._make('tfps/chief/', timeout_secs, name=name, initial_value=True)

  def _find_or_make(
    self, name: str, timeout_secs: float | None
  ) -> shared_variables.SharedVariable:
    if name not in self._rows:
      self._rows[name] = self._make(
        'tfps/barrier/',
        timeout_secs,
        name=name,
        initial_value=np.stack([np.zeros_like(self._listed), self._listed]),
        trainable=False,
      )
    return self._rows[name]

  def _make(
    self, scope: str, timeout_secs: float | None, **kwargs: Any
  ) -> shared_variables.SharedVariable:
    def make() -> shared_variables.SharedVariable:
      with tf.device(_DEVICE), tf.name_scope(scope):
        return self._shared.make_within(timeout_secs, **kwargs)

    # Others wait for the chief, and must not hold up a repair meanwhile.
    made = self._surviving(make) if self._shared.is_chief else make()
    self._notice(made)
    return made


class _State:
  """Arrivals at a barrier.

  Args:
    rows: int64 of shape [2, slots]: each task's counter, and whether it is
      listed.
  """

  def __init__(self, rows: np.ndarray) -> None:
    self._counts = rows[0]
    self._is_listed = rows[1] > 0

  def next_round(self, own: int, *, is_first: bool) -> int:
    """Returns the round at which the task of a slot arrives now.

    Args:
      own: the slot.
      is_first: whether it is the first time since the task was started.
    """
    before = int(self._counts[own])
    number = before + 1
    if self._is_listed[own]:
      return before if is_first and not self.is_complete(before) else number
    return max(number, int(self._counts[self._is_listed].max()))

  def is_complete(self, number: int) -> bool:
    """Returns whether all listed tasks have arrived at a round."""
    return bool((self._counts[self._is_listed] >= number).all())

  def late(self, number: int, joined: '_JoinedTasks') -> list[spec_lib.Task]:
    """Returns the tasks that have not arrived at a round yet."""
    is_behind = self._counts < number
    listed = [_task(i) for i in (is_behind & self._is_listed).nonzero()[0]]
    return listed or [
      task
      for task in sorted(joined())
      if is_behind[_slot(task)] and not self._is_listed[_slot(task)]
    ]


class _JoinedTasks:
  """Tasks that joined later, looked up once in a period."""

  def __init__(self, joined: Callable[[], Collection[spec_lib.Task]]) -> None:
    self._joined = joined
    self._found: Collection[spec_lib.Task] = ()
    self._next_at = time.monotonic()

  def __call__(self) -> Collection[spec_lib.Task]:
    if time.monotonic() >= self._next_at:
      self._found = self._joined()
      self._next_at = time.monotonic() + timeouts.current().peers_every_secs
    return self._found


def _arrive(
  row: shared_variables.SharedVariable, slot: int, number: int
) -> None:
  row.scatter_nd_update([[0, slot]], [tf.constant(number, tf.int64)])


def _slot(task: spec_lib.Task) -> int:
  """Returns the index of a task's counter, the same in all processes."""
  slot = 0 if task.job == 'chief' else 1 + task.index
  if slot >= _NUM_SLOTS:
    raise ValueError(
      f'The cluster has {task}, but between graphs there may be at most '
      f'{_NUM_SLOTS - 1:,} workers. Give fewer, or use a '
      'tfps.ParameterServerStrategy.'
    )
  return slot


def _task(slot: int) -> spec_lib.Task:
  return spec_lib.Task('worker', int(slot) - 1) if slot else spec_lib.CHIEF
