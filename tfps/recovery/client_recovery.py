"""Recovery of clients that share variables from the loss of a ps.

Each worker detects the loss by a failed call, blocks other calls of its
process, repairs what it can and repeats the call.
"""

from collections.abc import Callable
from collections.abc import Collection
import threading
import time
from typing import Any
from typing import TypeVar

from absl import logging
import tensorflow as tf

from tfps import errors
from tfps._compat import cancellation
from tfps._utils import deadlines
from tfps._utils import quiesce_lock
from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib
from tfps.recovery import client_repair
from tfps.recovery import config
from tfps.recovery import consistency_note as consistency_note_lib
from tfps.recovery import error_classifier
from tfps.recovery import events
from tfps.recovery import inventory
from tfps.recovery import replicas as replicas_lib
from tfps.recovery import saved_tables as saved_tables_lib
from tfps.recovery import snapshotter as snapshotter_lib
from tfps.recovery import stuck_calls
from tfps.server import fencing
from tfps.server import ps_addresses
from tfps.updates import sessions
from tfps.variables import shared_variables

_Result = TypeVar('_Result')


class ClientRecovery:
  """Saves and restores variables that several processes share; one in each.

  Args:
    recovery: settings, the same in all processes.
    address_book: addresses of the ps.
    is_chief: whether this process saves and restores the variables.
    shared: creates the variables.
    device: CPU of this process.
    greet: registers this process with servers that have restarted, except for
      the given hosted ps.
    fence: fence of this process.
    notes: consistency notes of the job; by default those without a container.

  Attributes:
    events: listener and counts of lost tasks.
    num_interruptions: number of calls that failed and were repeated.
    on_loss: called, maybe repeatedly, before calls are waited for that a loss
      has interrupted: ends what they wait for besides ps.

  Raises:
    errors.CheckpointError: the directory cannot be used.
    ValueError: replicas are wanted and there is only one ps.
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
    notes: consistency_note_lib.ConsistencyNotes | None = None,
  ) -> None:
    self._address_book = address_book
    self._replicas = replicas_lib.Replicas(
      recovery, len(address_book.addresses), device=device
    )
    self.events = events.Events(recovery.on_event)
    self._recovery = recovery
    self._gate = quiesce_lock.QuiesceLock()
    self._calls = cancellation.Calls()
    self.num_interruptions = 0
    self.on_loss: Callable[[], object] = lambda: None
    self._own = threading.local()  # whether a thread is in `surviving`
    self._is_stopped = False
    self._notes = notes or consistency_note_lib.ConsistencyNotes()
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
      self._calls,
      address_book.incarnations,
      lambda: self._repair.known,
      lambda: self.on_loss(),
    )
    self._changes = error_classifier.ChangeDetector()
    self._checked_at = 0.0
    self._restores = False
    if self._snapshotter is not None:
      self._repair.connect_to_moved()
      # Whether the ps do not have all live variables of this job.
      self._restores = not self._notes.match(self._repair.known)
      self._snapshotter.start(self._gate)
      self._replicas.start()
    else:
      self._connect_to_moved()
    address_book.pop_moves()
    self._stuck_calls.start()

  def add(self, variable: Any) -> None:
    """Adds a variable.

    The chief gives it its value in the last snapshot, unless the ps have live
    variables of the job.

    Args:
      variable: a `tf.Variable` or a `ShardedVariable`.

    Raises:
      errors.CheckpointError: the snapshot has another variable of that name.
      ValueError: it is sharded and holds strings.
    """
    entry = self._inventory.add(variable, self.reading)
    if entry is None:
      return
    if self._snapshotter is None:
      self._replicas.attach(entry)
      return
    if self._restores:
      self._snapshotter.begin(entry)
    self._replicas.add(entry, is_new=self._restores)

  @property
  def begins_with_snapshot(self) -> bool:
    """True if this is the chief, and variables begin with saved values."""
    snapshotter = self._snapshotter
    return self._restores and (
      snapshotter is not None and snapshotter.begun_with is not None
    )

  def add_unsaved(self, variable: Any) -> None:
    """Adds a variable that gets new memory after a loss, but no value.

    Args:
      variable: a `tf.Variable` on a ps.
    """
    self._inventory.unsaved.append(variable)

  def on_restored(self, function: Callable[[], object]) -> None:
    """Sets what is called after each repair, in the chief before others go on.

    Args:
      function: sets values of unsaved variables; repeated if a ps is lost.
    """
    self._repair.on_restored = function

  def is_due(self, error: tf.errors.OpError) -> bool:
    """Returns whether an error was caused by a lost ps, and is repaired."""
    return not self._is_stopped and self._repair.is_due(error)

  def check_ps(self) -> None:
    """Checks, if the last check was long ago, that all ps are those in use.

    It is for loops that wait for other processes, which may wait for a repair
    by this one.

    Raises:
      tf.errors.UnavailableError: a ps is silent or has been restarted.
    """
    now = time.monotonic()
    if self._is_stopped or (
      now < self._checked_at + timeouts.current().probe_every_secs
    ):
      return
    self._checked_at = now
    found = self._address_book.incarnations()
    if self._changes.has_changed(found, self._repair.known):
      raise tf.errors.UnavailableError(
        None, None, 'A ps does not answer, or has been restarted.'
      )

  @property
  def saved_tables(self) -> saved_tables_lib.SavedTables | None:
    """Tables of the snapshot with which variables begin; None if none do."""
    if self._snapshotter is None or not self._restores:
      return None
    return self._snapshotter.saved_tables

  def surviving(self, function: Callable[[], _Result]) -> _Result:
    """Calls a function, again after each loss of a ps; returns its result.

    Args:
      function: what to call; must tolerate repetition.

    Raises:
      errors.CheckpointError: not all variables had been saved.
      errors.DeadlineError: names ps, or the chief, that were not restarted.
      errors.ReplacedError: another process has replaced this one.
    """
    return self._surviving(function, self._cover)

  def reading(self, function: Callable[[], _Result]) -> _Result:
    """Calls a function that does not train, as `surviving` does."""
    return self._surviving(function, lambda: None)

  def do_without(self, task: spec_lib.Task) -> None:
    """Saves the variables of a ps that is to end; then it counts as lost."""
    if self._snapshotter is not None:
      try:
        self._snapshotter.save()
        self._replicas.refresh()
      except (
        tf.errors.OpError,
        errors.CheckpointError,
        errors.DeadlineError,
      ) as error:
        logging.warning(
          '%s leaves, and its variables could not be saved: %s', task, error
        )

  def keep(self) -> None:
    """Saves the variables, if this is the chief, against a later loss.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    if self._snapshotter is not None:
      self._snapshotter.save_if_possible()
      self._replicas.refresh()

  def keep_writes(self) -> None:
    """Saves what was written outside of executions, as `keep` does."""
    self.keep()

  def save_for_good(self) -> None:
    """Stops training and writes a last snapshot, if this is the chief."""
    is_quiet = quiesce_lock.quiesce_for_last_snapshot(
      self._gate, self._recovery.timeout_secs
    )
    if self._snapshotter is not None and is_quiet:
      self._snapshotter.save_at_last()

  def use_sync(self, session: sessions.Session) -> None:
    """Adapts the chief's snapshots to synchronous workers.

    Args:
      session: synchronizes the workers.
    """
    if self._snapshotter is not None:
      self._snapshotter.on_restored(session.start)
      self._snapshotter.quiesce_with(
        session.paused if session.makes_one_update else None
      )

  def stop(self) -> None:
    """Stops snapshots and repairs; stopping twice is harmless.

    Calls are no longer repeated, as ps may end.
    """
    self._is_stopped = True
    self._stuck_calls.stop()
    if self._snapshotter is not None:
      self._snapshotter.stop()
      self._replicas.stop()

  def _connect_to_moved(self) -> None:
    try:
      self._repair.connect_to_moved()
    except tf.errors.OpError as error:
      logging.warning('A ps is lost or cannot be reached: %s', error)
      self._repair_ps(self._deadline())

  def _surviving(
    self, function: Callable[[], _Result], prepare: Callable[[], None]
  ) -> _Result:
    if self._is_stopped or getattr(self._own, 'is_surviving', False):
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
          deadline = deadline or self._deadline()
          if deadlines.is_over(deadline) or not self._repair.is_due(error):
            # Once replaced, operations of this process fail in many ways.
            self._repair.check()
            raise
          logging.warning('A ps is lost or cannot be reached: %s', error)
          self.num_interruptions += 1
        self._repair_ps(deadline)
    finally:
      self._own.is_surviving = False

  def _cover(self) -> None:
    if self._snapshotter is not None:
      self._snapshotter.cover()
      self._replicas.cover()
      if self._restores:
        self._notes.write(self._repair.known)
        self._restores = False

  def _repair_ps(self, deadline: float | None) -> None:
    self.on_loss()
    with quiesce_lock.quiesced(self._gate, self._recovery.timeout_secs):
      self._repair.repair(deadline)

  def _deadline(self) -> float | None:
    return deadlines.after(self._recovery.timeout_secs)
