"""Repair of lost ps by each of the clients that share their variables.

Each process reconnects by itself. The chief restores the values and then writes
a note on every ps, for which the other workers wait. They read it on a ps that
was not lost. It also tells which incarnation of each ps to use, in case a lost
one answers at two addresses.
"""

from collections.abc import Callable
from collections.abc import Collection
import time

from absl import logging
import tensorflow as tf

from tfps import errors
from tfps._compat import server_def
from tfps._utils import deadlines
from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib
from tfps.recovery import consistency_note as consistency_note_lib
from tfps.recovery import copies as copies_lib
from tfps.recovery import error_classifier
from tfps.recovery import events as events_lib
from tfps.server import task_registry

Found = dict[int, int | None]  # incarnations by index of the ps

# The next look at a lost ps is due after this part of the time it is lost.
_POLL_RATIO = 0.25
# A call is also cancelled if its part on another task fails.
_CONNECTION_ERRORS = (
  tf.errors.UnavailableError,
  tf.errors.AbortedError,
  tf.errors.CancelledError,
)
# Raised by variables whose memory is gone, and by what depends on them.
_MISSING_ERRORS = (
  tf.errors.NotFoundError,
  tf.errors.FailedPreconditionError,
  tf.errors.InternalError,
  tf.errors.InvalidArgumentError,
)


class ClientRepair:
  """Detects changes of the ps, reconnects to them and restores variables.

  Args:
    copies: of the variables.
    events: listener and counts of lost tasks.
    greet: registers this process with servers that have restarted, except for
      the given hosted ps.

  Attributes:
    registry: the ps in use, by index.
    on_restored: called in each process once all ps have their variables.
  """

  def __init__(
    self,
    copies: copies_lib.Copies,
    events: events_lib.Events,
    greet: Callable[[Collection[spec_lib.Task]], object],
  ) -> None:
    self._copies = copies
    self._address_book = address_book = copies.address_book
    self._is_chief = copies.snapshotter is not None
    self._events = events
    self._greet = greet
    self._fence = copies.fence
    self.on_restored: Callable[[], object] = lambda: None
    self.registry = task_registry.TaskRegistry(address_book.incarnations())
    self._at = dict(address_book.addresses)  # as of the runtime
    # Ps with a new connection: their variables have to be created again.
    self._reconnected: set[int] = set()
    self._next_look = 0.0

  def connect_to_moved(self) -> None:
    """Connects to ps that others serve though they answer at their own address.

    Raises:
      tf.errors.OpError: a ps is lost or cannot be reached.
    """
    for _ in range(2):  # moves, and back if it is not there, either
      if not self._copies.notes.contradict(self.registry.known):
        return
      self._address_book.reconsider()
      if self._address_book.addresses == self._at:
        return
      self._fence.take({'ps': self._connect()})
      self.registry.accept(self._address_book.incarnations())
      self._copies.shared.rejoin()

  def is_due(self, error: tf.errors.OpError) -> bool:
    """Returns whether an error was caused by a lost ps."""
    if self._address_book.incarnations() != self.registry.known:
      return True
    if error_classifier.is_cancelled_transfer(error):
      return True
    if isinstance(error, _CONNECTION_ERRORS):
      return '/job:ps' in str(error)
    return isinstance(error, _MISSING_ERRORS) and bool(
      self._copies.inventory.emptied()
    )

  def check(self) -> None:
    """Checks that no other process has replaced this one.

    Raises:
      errors.ReplacedError: one has.
    """
    self._fence.check({'ps': self.registry.known})

  def repair(self, deadline: float | None) -> None:
    """Waits until all ps answer and have their variables; restores them.

    Nothing may be executed on a ps meanwhile.

    Args:
      deadline: as of `deadlines.after`.

    Raises:
      errors.CheckpointError: not all variables had been saved.
      errors.DeadlineError: names ps, or the chief, that were not restarted.
      errors.ReplacedError: another process has replaced this one.
    """
    begun = time.monotonic()
    found: Found = {}
    with consistency_note_lib.NoteReader() as reader:
      while True:
        lost_secs = time.monotonic() - begun
        try:
          found = self._address_book.incarnations()
          note = None
          if self._is_chief:
            found = self._fail_over(found, lost_secs)
          else:
            note = self._read_note(found, reader)
            found = self._follow(found, note)
          if None not in found.values() and self._restore(found, note):
            return
        except (tf.errors.OpError, errors.UnreachableError) as error:
          logging.warning('A lost ps could not be restored: %s', error)
        except errors.DeadlineError as error:
          if deadlines.is_over(deadline):
            raise
          logging.warning('A lost ps could not be restored: %s', error)
        if deadlines.is_over(deadline):
          raise self._timeout_error(found)
        times = timeouts.current()
        secs = max(times.repair_min_poll_secs, _POLL_RATIO * lost_secs)
        time.sleep(min(times.repair_poll_secs, secs))

  def _fail_over(self, found: Found, lost_secs: float) -> Found:
    """Fails over silent ps if due, as the chief; returns all incarnations."""
    silent = {ps for ps, incarnation in found.items() if incarnation is None}
    if not silent:
      return found
    moved = self._copies.fail_over(silent, lost_secs)
    return self._address_book.incarnations() if moved else found

  def _read_note(
    self, found: Found, reader: consistency_note_lib.NoteReader
  ) -> Found | None:
    """Reads the chief's note on a ps that was not lost, if there is one."""
    known = self.registry.known
    for ps, incarnation in found.items():
      if incarnation is not None and incarnation == known[ps]:
        task = spec_lib.Task('ps', ps)
        return reader.read(self._address_book.addresses[task])
    return None

  def _follow(self, found: Found, note: Found | None) -> Found:
    """Looks for ps at other addresses; returns all incarnations.

    Only the chief decides which of two processes is the ps.
    """
    now = time.monotonic()
    if found == note:
      return found
    if note in (None, self.registry.known) and now < self._next_look:
      return found
    self._next_look = now + timeouts.current().repair_poll_secs
    before = self._address_book.addresses.copy()
    silent = {ps for ps, incarnation in found.items() if incarnation is None}
    if note is not None:
      self._address_book.locate(note)
    elif silent:
      self._address_book.follow_failover(silent)
    else:
      self._address_book.reconsider()
    moved = self._address_book.addresses != before
    return self._address_book.incarnations() if moved else found

  def _restore(self, found: Found, note: Found | None) -> bool:
    known = self.registry.known
    if note is not None and note != found != known:
      return False  # the chief is still restoring
    # Ps that have moved may still know an earlier process of this task.
    addresses = self._address_book.addresses
    stay = {
      task.index for task in addresses if addresses[task] == self._at[task]
    }
    self._fence.check({'ps': stay})
    lost = {ps for ps in found if found[ps] != known[ps]} | self._reconnected
    if not lost and self._is_chief:
      lost = self._copies.inventory.emptied()
    if not lost and (
      self._is_chief or not self._copies.notes.contradict(found)
    ):
      time.sleep(timeouts.current().poll_secs)
      return True
    survivors = {spec_lib.Task('ps', ps) for ps in found if ps not in lost}
    self._greet({*self._address_book.hosted, *survivors})
    self._reconnected |= self._connect()
    lost |= self._reconnected
    if not self._is_chief and not self._copies.notes.match(found):
      return False  # the chief is still restoring
    self._copies.renew(lost)
    secs = None
    if self._is_chief:
      secs = self._copies.restore(lost, found, self.on_restored)
    else:
      self.on_restored()
    self.registry.accept(found)
    self._reconnected = set()
    self._fence.take({'ps': lost})
    for task in self._address_book.pop_moves():
      self._events.tell('moved', [str(task)])
    self._events.tell('back', [f'ps:{i}' for i in sorted(lost)], secs)
    return True

  def _connect(self) -> set[int]:
    """Tells the runtime the addresses of the ps; returns the ps that moved."""
    addresses = dict(self._address_book.addresses)
    server_def.update(
      moved={(t.job, t.index): at for t, at in addresses.items()}
    )
    elsewhere = {t.index for t in addresses if addresses[t] != self._at[t]}
    self._at = addresses
    return elsewhere

  def _timeout_error(self, found: Found) -> errors.DeadlineError:
    secs = self._copies.recovery.timeout_secs
    missing = [
      self._address_book.describe(ps)
      for ps, value in found.items()
      if value is None
    ]
    if missing:
      return errors.not_restarted(missing, secs)
    return errors.DeadlineError(
      f'The chief has not restored the variables within {secs:g} seconds. '
      'Check that it is alive.'
    )
