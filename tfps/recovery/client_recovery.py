"""Recovery of clients that share variables from the loss of a ps.

Each worker detects the loss by a failed call, blocks other calls of its
process, repairs what it can and repeats the call.
"""

from collections.abc import Callable
from collections.abc import Collection
import math
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
from tfps.recovery import copies as copies_lib
from tfps.recovery import events
from tfps.recovery import stuck_calls
from tfps.updates import sessions

_Result = TypeVar('_Result')


class ClientRecovery:
  """Saves and restores variables that several processes share; one in each.

  Args:
    copies: of the variables.
    greet: registers this process with servers that have restarted, except for
      the given hosted ps.

  Attributes:
    copies: as given.
    events: listener and counts of lost tasks.
    num_interruptions: number of calls that failed and were repeated.
    on_loss: called, maybe repeatedly, before calls are waited for that a loss
      has interrupted: ends what they wait for besides ps.
  """

  def __init__(
    self,
    copies: copies_lib.Copies,
    *,
    greet: Callable[[Collection[spec_lib.Task]], object],
  ) -> None:
    self.copies = copies
    self.events = events.Events(copies.recovery.on_event)
    self._gate = quiesce_lock.QuiesceLock()
    self._calls = cancellation.Calls()
    self.num_interruptions = 0
    self.on_loss: Callable[[], object] = lambda: None
    self._own = threading.local()  # whether a thread is in `surviving`
    self._is_stopped = False
    self._repair = client_repair.ClientRepair(copies, self.events, greet)
    self._stuck_calls = stuck_calls.StuckCallCanceller(
      self._calls,
      self._has_changed,
      lambda: self.on_loss(),
    )
    self._checked_at = self._began_at = 0.0
    if copies.snapshotter is not None:
      self._repair.connect_to_moved()
      known = self._repair.registry.known
      copies.restores = not copies.notes.match(known)
      copies.notes.announce({} if copies.restores else known)
      copies.snapshotter.start(self._gate)
      copies.replicas.start()
    else:
      self._connect_to_moved()
    copies.address_book.pop_moves()
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
    copies = self.copies
    entry = copies.inventory.add(variable, self.reading)
    if entry is None:
      return
    if copies.snapshotter is None:
      copies.replicas.attach(entry)
      return
    if copies.restores:
      copies.snapshotter.begin(entry)
    copies.replicas.add(entry, is_new=copies.restores)

  @property
  def begins_with_snapshot(self) -> bool:
    """True if this is the chief, and variables begin with saved values."""
    snapshotter = self.copies.snapshotter
    return self.copies.restores and (
      snapshotter is not None and snapshotter.begun_with is not None
    )

  def add_unsaved(self, variable: Any) -> None:
    """Adds a variable that gets new memory after a loss, but no value.

    Args:
      variable: a `tf.Variable` on a ps.
    """
    self.copies.inventory.unsaved.append(variable)

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
    if self._has_changed():
      raise tf.errors.UnavailableError(
        None, None, 'A ps does not answer, or has been restarted.'
      )

  def surviving(self, function: Callable[[], _Result]) -> _Result:
    """Calls a function, again after each loss of a ps; returns its result.

    Time to restart a ps counts from the first loss, and anew from a loss before
    which the function has run for `Recovery.timeout_secs`.

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
    if self.copies.snapshotter is not None:
      try:
        self.copies.snapshotter.save()
        self.copies.replicas.refresh()
      except (
        tf.errors.OpError,
        errors.CheckpointError,
        errors.DeadlineError,
      ) as error:
        logging.warning(
          '%s leaves, and its variables could not be saved: %s', task, error
        )

  def keep_writes(self) -> None:
    """Saves what was written outside of executions, against a later loss.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    self.copies.keep()

  def save_for_good(self) -> None:
    """Stops training and writes a last snapshot, if this is the chief."""
    is_quiet = quiesce_lock.quiesce_for_last_snapshot(
      self._gate, self.copies.recovery.timeout_secs
    )
    if self.copies.snapshotter is not None and is_quiet:
      self.copies.snapshotter.save_at_last()

  def use_sync(self, session: sessions.Session) -> None:
    """Adapts the chief's snapshots to synchronous workers.

    Args:
      session: synchronizes the workers.
    """
    if self.copies.snapshotter is not None:
      self.copies.snapshotter.on_restored(session.start)
      self.copies.snapshotter.quiesce_with(
        session.paused if session.makes_one_update else None
      )

  def stop(self) -> None:
    """Stops snapshots and repairs; stopping twice is harmless.

    Calls are no longer repeated, as ps may end.
    """
    self._is_stopped = True
    self._stuck_calls.stop()
    self.copies.notes.close()
    if self.copies.snapshotter is not None:
      self.copies.snapshotter.stop()
      self.copies.replicas.stop()

  def _has_changed(self) -> bool:
    return self._repair.registry.has_changed(
      self.copies.address_book.incarnations()
    )

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
    timeout_secs = self.copies.recovery.timeout_secs
    self._own.is_surviving = True
    try:
      while True:
        began_at = math.inf
        try:
          prepare()
          with self._gate, self._calls.one():
            began_at = time.monotonic()
            return function()
        except tf.errors.OpError as error:
          # Losses shortly after one another share a deadline: a ps that is lost
          # each time again would not let this end.
          if deadline is None or time.monotonic() >= began_at + timeout_secs:
            deadline = self._deadline()
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
    self.copies.cover(lambda: self._repair.registry.known)
    self._check_notes()

  def _check_notes(self) -> None:
    """Checks, if the last call began long ago, that the chief has the same ps.

    Another one may have taken over a ps that was silent meanwhile, and answers
    again. What is done on it is lost.

    Raises:
      tf.errors.OpError: the chief has others, or a ps is lost.
    """
    now = time.monotonic()
    before, self._began_at = self._began_at, now
    if self.copies.snapshotter is not None or (
      now < before + timeouts.current().probe_every_secs
    ):
      return
    if self.copies.notes.are_of_others(self._repair.registry.known):
      raise tf.errors.UnavailableError(
        None, None, 'The chief uses another /job:ps than this process.'
      )

  def _repair_ps(self, deadline: float | None) -> None:
    self.on_loss()
    with quiesce_lock.quiesced(self._gate, self.copies.recovery.timeout_secs):
      self._repair.repair(deadline)
    self._began_at = 0.0  # the next call checks whether the chief has moved on

  def _deadline(self) -> float | None:
    return deadlines.after(self.copies.recovery.timeout_secs)
