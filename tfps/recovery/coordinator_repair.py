"""Repair of lost ps by a coordinator, which is their only client."""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
import threading

from absl import logging
import tensorflow as tf

from tfps import errors
from tfps._utils import deadlines
from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib
from tfps.recovery import copies as copies_lib
from tfps.recovery import events as events_lib
from tfps.recovery import repair_interface
from tfps.server import task_monitor as task_monitor_lib


class CoordinatorRepair(repair_interface.Repairs):
  """Repairs that the failure handler asks for when ps are lost or leave.

  Args:
    copies: of the variables.
    events: listener and counts of lost tasks.
    greet: registers this process with servers that have restarted, except for
      the given hosted ps.

  Attributes:
    monitor: monitor of the tasks; set before the first repair.
  """

  monitor: task_monitor_lib.TaskMonitor

  def __init__(
    self,
    copies: copies_lib.Copies,
    events: events_lib.Events,
    greet: Callable[[Collection[spec_lib.Task]], object],
  ) -> None:
    self._copies = copies
    self._address_book = copies.address_book
    self._events = events
    self._greet = greet
    self._fence = copies.fence
    self._can_fail_back: set[spec_lib.Task] = set()
    self._left: dict[spec_lib.Task, str] = {}  # addresses with old variables
    self._leaving: set[int] = set()  # indices of ps
    self._has_left = threading.Event()

  def wait_until_left(self, ps: int, request: Callable[[], object]) -> None:
    """Waits until another ps has taken over the variables of one that leaves.

    It gives up after `Timeouts.farewell_secs`.

    Args:
      ps: index of the ps.
      request: requests a repair.
    """
    self._has_left.clear()
    self._leaving = {ps}
    deadline = deadlines.after(timeouts.current().farewell_secs)
    while not self._has_left.is_set() and not deadlines.is_over(deadline):
      request()  # again, as another repair may have been under way
      self._has_left.wait(timeouts.current().probe_every_secs)
    self._leaving = set()

  def can_fail_back(self) -> bool:
    """Returns whether ps that others have taken over can go home, if repaired.

    They have been restarted, and answer at their own addresses.
    """
    self._can_fail_back = self._address_book.ready_to_fail_back()
    return bool(self._can_fail_back)

  # Called by the failure handler.

  def moved(self) -> Mapping[tuple[str, int], str]:
    return {
      (task.job, task.index): address
      for task, address in self._address_book.moved.items()
    }

  def describe(self, ps: int) -> str:
    return self._address_book.describe(ps)

  def check(self, found: Mapping[str, Collection[int]]) -> None:
    self._fence.check(found)

  def prepare(self) -> None:
    self._copies.cover(self._address_book.incarnations)

  def relocate(self, ps: set[int], lost_secs: float) -> bool:
    moved = self._copies.fail_over(ps, lost_secs)
    self._follow_moves()
    return moved

  def begin(self) -> None:
    can_fail_back, self._can_fail_back = self._can_fail_back, set()
    leaving = set() if self._has_left.is_set() else self._leaving
    if not can_fail_back and not leaving:
      return
    snapshotter = self._copies.snapshotter
    assert snapshotter is not None
    try:
      snapshotter.save_quiesced()
      self._copies.replicas.refresh()
    except (tf.errors.OpError, errors.CheckpointError) as error:
      logging.warning(
        'No ps is moved, as the variables could not be saved: %s', error
      )
      return
    for task, address in self._address_book.hosted.items():
      if task in can_fail_back:
        self._left[task] = address
    self._address_book.fail_back(can_fail_back)
    moves_ps = self._copies.recovery.moves_ps
    has_left = not moves_ps or self._address_book.leave(leaving)
    self._follow_moves()
    if leaving and has_left:
      self._has_left.set()

  def notify(self, kind: str, workers: set[int]) -> None:
    self._events.tell(kind, [f'worker:{i}' for i in sorted(workers)])

  def rebuild(self, ps: set[int]) -> None:
    self._greet(self._address_book.hosted)
    self._fence.take({'ps': ps})
    incarnations = self._address_book.incarnations()
    copies = self._copies
    copies.renew(ps)
    secs = None
    # Otherwise only a connection was lost.
    if not copies.notes.match(incarnations) or copies.inventory.emptied():
      secs = copies.restore(ps, incarnations)
    self._free_hosts()
    self._events.tell('back', [f'ps:{i}' for i in sorted(ps)], secs)

  def _free_hosts(self) -> None:
    """Frees the memory of ps that have gone home where they were hosted."""
    left, self._left = self._left, {}
    used = self._address_book.addresses
    self._fence.free({t: at for t, at in left.items() if used[t] != at})

  def _follow_moves(self) -> None:
    """Reports moved ps and monitors all at their current addresses."""
    for task in self._address_book.pop_moves():
      self._events.tell('moved', [str(task)])
    for task, address in self._address_book.addresses.items():
      self.monitor.move(task, address)
