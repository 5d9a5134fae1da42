"""Repair of lost ps by each of the clients that share their variables.

Each process reconnects by itself. The chief restores the values and then writes
a note on every ps, for which the other workers wait. It also tells which
incarnation of each ps to use, in case a lost one answers at two addresses.
"""

from collections.abc import Callable
from collections.abc import Collection
import time

import tensorflow as tf

from tfps._compat import server_def
from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib
from tfps.recovery import consistency_note as consistency_note_lib
from tfps.recovery import copies as copies_lib
from tfps.recovery import error_classifier
from tfps.recovery import events as events_lib
from tfps.recovery import repair_engine
from tfps.server import task_registry

Found = dict[int, int | None]  # incarnations by index of the ps

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


class ClientRepair(repair_engine.Driver):
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
    self._latest: Found | None = None  # that the chief has announced
    self._note: Found | None = None
    self._first_read = 0  # index of the ps whose note is read first
    self._reader: consistency_note_lib.NoteReader
    self._engine = repair_engine.RepairEngine(
      self, copies.recovery.timeout_secs
    )

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
    self._engine.begin(deadline)
    with consistency_note_lib.NoteReader() as self._reader:
      self._engine.run_quiesced()
    if self._engine.error is not None:
      raise self._engine.error

  # Called by the engine.

  def find(self, lost_secs: float) -> repair_engine.Found:
    found = self._address_book.incarnations()
    if self._is_chief:
      return self._fail_over(found, lost_secs)
    self._latest = self._copies.notes.latest()
    self._note = self._latest or self._read_note(found)
    return self._follow(found, self._note)

  def describe(self, ps: int) -> str:
    return self._address_book.describe(ps)

  def restore(self, found: repair_engine.Found) -> bool:
    known = self.registry.known
    note = self._note
    if self._latest not in (None, found):
      return False  # not those that the chief uses
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
    if self._address_book.incarnations() != found:
      return False  # connected to one that was started again meanwhile
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

  def _fail_over(self, found: Found, lost_secs: float) -> Found:
    """Fails over silent ps if due, as the chief; returns all incarnations."""
    silent = {ps for ps, incarnation in found.items() if incarnation is None}
    if not silent:
      return found
    moved = self._copies.fail_over(silent, lost_secs)
    return self._address_book.incarnations() if moved else found

  def _read_note(self, found: Found) -> Found | None:
    """Reads the chief's latest note, as far as a ps that answers has it.

    A ps that was started again has none before the chief has restored it. One
    that the chief has replaced, although it answers again, has an earlier one:
    that of before, or one that this process does not know either.
    """
    known = self.registry.known
    earlier = None
    self._first_read += 1
    for i in range(len(found)):
      ps = (self._first_read + i) % len(found)
      if found[ps] is not None:
        task = spec_lib.Task('ps', ps)
        note = self._reader.read(self._address_book.addresses[task])
        if note not in (None, known):
          return note
        earlier = note or earlier
    return earlier

  def _follow(self, found: Found, note: Found | None) -> Found:
    """Looks for ps at other addresses; returns all incarnations.

    Only the chief decides which of two processes is the ps.
    """
    now = time.monotonic()
    if found == note:
      return found
    if note == self.registry.known:
      note = None  # which tells nothing new
    if note is None and now < self._next_look:
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

  def _connect(self) -> set[int]:
    """Tells the runtime the addresses of the ps; returns the ps that moved."""
    addresses = dict(self._address_book.addresses)
    server_def.update(
      moved={(t.job, t.index): at for t, at in addresses.items()}
    )
    elsewhere = {t.index for t in addresses if addresses[t] != self._at[t]}
    self._at = addresses
    return elsewhere
