"""Has workers that share variables go on after the loss of a ps.

Each worker finds the loss by itself, in what it was doing, lets nobody else in
its process do anything on a ps, mends what it can, and does it again.
"""

from collections.abc import Callable
from collections.abc import Collection
import threading
from typing import Any
from typing import TypeVar

from absl import logging
import tensorflow as tf

from tfps import errors
from tfps._compat import cancellation
from tfps._utils import deadlines
from tfps._utils import quiesce_lock
from tfps.cluster import spec as spec_lib
from tfps.recovery import client_repair
from tfps.recovery import config
from tfps.recovery import consistency_note as consistency_note_lib
from tfps.recovery import events
from tfps.recovery import inventory
from tfps.recovery import replicas as replicas_lib
from tfps.recovery import snapshotter as snapshotter_lib
from tfps.recovery import stuck_calls
from tfps.server import fencing
from tfps.server import ps_addresses
from tfps.variables import shared_variables

_Result = TypeVar('_Result')


class ClientRecovery:
  """Keeps the variables that several processes share; each has one.

  Args:
    recovery: how; the same in all of them.
    address_book: of the ps.
    is_chief: whether this process saves the variables and puts them back.
    shared: makes them.
    device: of this process.
    greet: tells the servers of this process, but for those that are guests;
      called when some have restarted.
    fence: of this process.

  Attributes:
    events: of lost tasks.
    num_interruptions: how often something has been done again.

  Raises:
    errors.CheckpointError: the directory cannot be used.
    ValueError: there is one ps only, and it is to have a replica.
  """

  def __init__(
    self,
    recovery: config.Recovery,
    *,
    address_book: ps_addresses.PsAddressBook,
    is_chief: bool,
    shared: shared_variables.SharedVariables,
    device: str,
    greet: Callable[[Collection[spec_lib.Task]], object],
    fence: fencing.Fence,
  ) -> None:
    self._address_book = address_book
    self._replicas = replicas_lib.Replicas(
      recovery, len(address_book.addresses)
    )
    self.events = events.Events(recovery.on_event)
    self._recovery = recovery
    self._gate = quiesce_lock.QuiesceLock()
    self._calls = cancellation.Calls()
    self.num_interruptions = 0
    self._own = threading.local()  # whether a thread is surviving already
    self._notes = consistency_note_lib.ConsistencyNotes()
    self._snapshotter: snapshotter_lib.Snapshotter | None = None
    self._inventory = inventory.Inventory()
    if is_chief:
      self._snapshotter = snapshotter_lib.Snapshotter(
        recovery,
        device=device,
        num_ps=len(address_book.addresses),
        confirm=fence.check,
        is_shared=True,
      )
      self._inventory = self._snapshotter.inventory
    self._repair = client_repair.ClientRepair(
      recovery,
      address_book=address_book,
      notes=self._notes,
      shared=shared,
      replicas=self._replicas,
      events=self.events,
      greet=greet,
      fence=fence,
      snapshotter=self._snapshotter,
      inventory=self._inventory,
    )
    self._stuck_calls = stuck_calls.StuckCallCanceller(
      self._calls, address_book.incarnations, lambda: self._repair.known
    )
    self._begins_anew = False
    if self._snapshotter is not None:
      self._repair.find_who_has_moved()
      # Whether what is on the ps is not, or not all, from this very job.
      self._begins_anew = not self._notes.are(self._repair.known)
      self._snapshotter.start(self._gate)
      self._replicas.start()
    else:
      self._find_who_has_moved()
    address_book.pop_moves()
    self._stuck_calls.start()

  def add(self, variable: Any) -> None:
    """Takes note of a variable on the ps.

    The chief gives it its value of the last cut, unless all ps are those that
    it has known.

    Raises:
      errors.CheckpointError: the cut has another variable of that name.
      ValueError: it holds strings in shards.
    """
    entry = self._inventory.add(variable, self.reading)
    if entry is None:
      return
    if self._snapshotter is None:
      self._replicas.attach(entry)
      return
    if self._begins_anew:
      self._snapshotter.begin(entry)
    self._replicas.add(entry, is_new=self._begins_anew)

  def surviving(self, function: Callable[[], _Result]) -> _Result:
    """The function's result; it is called again after the loss of a ps.

    Raises:
      errors.CheckpointError: not all variables had been saved.
      errors.DeadlineError: names the ps, or the chief, that has not come back.
      errors.ReplacedError: another process is this task by now.
    """
    return self._surviving(function, self._cover)

  def reading(self, function: Callable[[], _Result]) -> _Result:
    """Likewise, of a function that does not train."""
    return self._surviving(function, lambda: None)

  def do_without(self, task: spec_lib.Task) -> None:
    """Saves what a ps has that is to end; then it counts as lost."""
    if self._snapshotter is not None:
      try:
        self._snapshotter.save()
        self._replicas.refresh()
      except (
        tf.errors.OpError,
        errors.CheckpointError,
        errors.DeadlineError,
      ) as error:
        logging.warning('%s leaves, and no cut was made: %s', task, error)

  def keep(self) -> None:
    """Has a loss from now on take nothing away, if this is the chief.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    if self._snapshotter is not None:
      self._snapshotter.save_if_possible()
      self._replicas.refresh()

  def save_for_good(self) -> None:
    """Makes a last cut, if this is the chief; then trains no more."""
    is_quiet = quiesce_lock.quiesce_for_last_snapshot(
      self._gate, self._recovery.timeout_secs
    )
    if self._snapshotter is not None and is_quiet:
      self._snapshotter.save_at_last()

  def meet_by(
    self, start: Callable[[], object], quiet: snapshotter_lib.Quiet | None
  ) -> None:
    """Has the chief note that workers wait for each other.

    Args:
      start: called each time that variables have been put back.
      quiet: as for `Snapshotter.keep_quiet_by`; None for this process' gate.
    """
    if self._snapshotter is not None:
      self._snapshotter.and_then(start)
      self._snapshotter.keep_quiet_by(quiet)

  def stop(self) -> None:
    """Makes no more cuts; twice is harmless."""
    self._stuck_calls.stop()
    if self._snapshotter is not None:
      self._snapshotter.stop()
      self._replicas.stop()

  def _find_who_has_moved(self) -> None:
    try:
      self._repair.find_who_has_moved()
    except tf.errors.OpError as error:
      logging.warning('A ps is lost, or out of reach: %s', error)
      self._mend(self._latest())

  def _surviving(
    self, function: Callable[[], _Result], prepare: Callable[[], None]
  ) -> _Result:
    if getattr(self._own, 'is_surviving', False):
      return function()
    deadline = None
    self._own.is_surviving = True
    try:
      while True:
        try:
          prepare()
          with self._gate, self._calls.one():
            return function()
        except tf.errors.OpError as error:
          deadline = deadline or self._latest()
          if deadlines.is_over(deadline) or not self._repair.is_due(error):
            # Else there are many ways in which operations fail.
            self._repair.check()
            raise
          logging.warning('A ps is lost, or out of reach: %s', error)
          self.num_interruptions += 1
        self._mend(deadline)
    finally:
      self._own.is_surviving = False

  def _cover(self) -> None:
    if self._snapshotter is not None:
      self._snapshotter.cover()
      self._replicas.cover()
      if self._begins_anew:
        self._notes.leave(self._repair.known)
        self._begins_anew = False

  def _mend(self, deadline: float | None) -> None:
    with quiesce_lock.quiesced(self._gate, self._recovery.timeout_secs):
      self._repair.mend(deadline)

  def _latest(self) -> float | None:
    return deadlines.after(self._recovery.timeout_secs)
