"""Places in a program where every worker waits for all the others."""

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
_CHIEF = spec_lib.Task('chief', 0)


class Barriers:
  """Barriers by name, each a row of counts on a ps.

  A worker that has come counts its turn and waits until nobody's count is
  lower. So a barrier can be used again, and tells who is missing. All whom the
  chief's cluster lists are waited for, and those that have joined as long as
  they may be alive. One that has joined begins with the turn that the others
  are at.

  Args:
    shared: makes the counts.
    tasks: all whom this process' cluster lists.
    own: this process' task, one of them.
    notice: gets each variable that was made.
    joined: the tasks that are not in the cluster and may be alive.
    surviving: by which is written; it may call again what it is given.

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
    """See `BetweenGraphStrategy.barrier`."""
    deadline = deadlines.after(timeout_secs)
    row = self._find_or_make(name, timeout_secs)
    state = _State(row.numpy())
    turn = state.turn_of(self._own)
    self._surviving(lambda: _count(row, self._own, turn))
    if state.is_past(turn):
      return
    look = _Look(self._joined)
    while late := _State(row.numpy()).late(turn, look):
      if deadlines.is_over(deadline):
        raise errors.DeadlineError(
          f'After {timeout_secs:g} seconds, {", ".join(map(str, late))} '
          f'did not come to the barrier {name!r}.'
        )
      time.sleep(timeouts.current().poll_secs)

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
    if name not in self._rows:
      with tf.device(_DEVICE), tf.name_scope('tfps/barrier/'):
        self._rows[name] = self._shared.make_within(
          timeout_secs,
          name=name,
          initial_value=np.stack([np.zeros_like(self._listed), self._listed]),
          trainable=False,
        )
      self._notice(self._rows[name])
    return self._rows[name]


class _State:
  """Who has come to a barrier, and how often.

  Args:
    rows: for each task's slot, its count, and whether the chief lists it.
  """

  def __init__(self, rows: np.ndarray) -> None:
    self._counts = rows[0]
    self._is_listed = rows[1] > 0

  def turn_of(self, own: int) -> int:
    """The turn of a task that comes now."""
    turn = int(self._counts[own]) + 1
    if self._is_listed[own]:
      return turn
    return max(turn, int(self._counts[self._is_listed].max()))

  def is_past(self, turn: int) -> bool:
    """Whether all who are listed have come to it, of whom none may wait."""
    return bool((self._counts[self._is_listed] >= turn).all())

  def late(self, turn: int, look: '_Look') -> list[spec_lib.Task]:
    """The tasks that have to come yet."""
    is_behind = self._counts < turn
    listed = [_task(i) for i in (is_behind & self._is_listed).nonzero()[0]]
    return listed or [
      task
      for task in sorted(look())
      if is_behind[_slot(task)] and not self._is_listed[_slot(task)]
    ]


class _Look:
  """Finds, now and then, who has joined."""

  def __init__(self, joined: Callable[[], Collection[spec_lib.Task]]) -> None:
    self._joined = joined
    self._found: Collection[spec_lib.Task] = ()
    self._next_at = time.monotonic()

  def __call__(self) -> Collection[spec_lib.Task]:
    if time.monotonic() >= self._next_at:
      self._found = self._joined()
      self._next_at = time.monotonic() + timeouts.current().peers_every_secs
    return self._found


def _count(row: shared_variables.SharedVariable, slot: int, turn: int) -> None:
  row.scatter_nd_update([[0, slot]], [tf.constant(turn, tf.int64)])


def _slot(task: spec_lib.Task) -> int:
  """The place of a task, which is the same in all processes."""
  slot = 0 if task.job == 'chief' else 1 + task.index
  if slot >= _NUM_SLOTS:
    raise ValueError(
      f'{task}: between graphs there may be {_NUM_SLOTS - 1:,} workers.'
    )
  return slot


def _task(slot: int) -> spec_lib.Task:
  return spec_lib.Task('worker', int(slot) - 1) if slot else _CHIEF
