"""Goes on with ps that were lost and are back, where workers share variables.

Each process does so by itself. The chief puts the values back and then leaves a
note on every ps, for which the other workers wait. They read it on a ps that
was not lost; it tells them, too, which ps to go on with, should a lost one
answer at two addresses.
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
from tfps.recovery import config
from tfps.recovery import consistency_note as consistency_note_lib
from tfps.recovery import events as events_lib
from tfps.recovery import inventory as inventory_lib
from tfps.recovery import replicas as replicas_lib
from tfps.recovery import snapshotter as snapshotter_lib
from tfps.server import fencing
from tfps.server import ps_addresses
from tfps.variables import shared_variables

Found = dict[int, int | None]  # by ps, its incarnation

# Of the time that a ps has been lost, how much to wait before the next look.
_PATIENCE = 0.25
_OUT_OF_REACH = (tf.errors.UnavailableError, tf.errors.AbortedError)
# Of variables whose memory is gone, and of what depends on them.
_NOT_THERE = (
  tf.errors.NotFoundError,
  tf.errors.FailedPreconditionError,
  tf.errors.InternalError,
  tf.errors.InvalidArgumentError,
)


class ClientRepair:
  """What one process knows of the ps, and how it catches up with them.

  Args:
    recovery: how long to wait, and for what.
    address_book: of the ps.
    notes: of the job.
    shared: makes the variables.
    replicas: of the variables.
    events: of lost tasks.
    greet: tells the servers of this process, but for those that are guests;
      called when some have restarted.
    fence: of this process.
    snapshotter: of the variables, if this is the chief.
    inventory: of the variables.

  Attributes:
    known: the ps that are in use, by their incarnations.
  """

  def __init__(
    self,
    recovery: config.Recovery,
    *,
    address_book: ps_addresses.PsAddressBook,
    notes: consistency_note_lib.ConsistencyNotes,
    shared: shared_variables.SharedVariables,
    replicas: replicas_lib.Replicas,
    events: events_lib.Events,
    greet: Callable[[Collection[spec_lib.Task]], object],
    fence: fencing.Fence,
    snapshotter: snapshotter_lib.Snapshotter | None,
    inventory: inventory_lib.Inventory,
  ) -> None:
    self._recovery = recovery
    self._address_book = address_book
    self._notes = notes
    self._shared = shared
    self._replicas = replicas
    self._events = events
    self._greet = greet
    self._fence = fence
    self._snapshotter = snapshotter
    self._inventory = inventory
    self.known: Found = address_book.incarnations()
    self._at = dict(address_book.addresses)  # where the runtime has them
    # With whom the connection is new: what was held there has to be, too.
    self._left: set[int] = set()
    self._next_look = 0.0  # for a lost ps elsewhere

  def find_who_has_moved(self) -> None:
    """Goes to where ps are that others serve but that answer at home, too.

    Raises:
      tf.errors.OpError: a ps is lost, or out of reach.
    """
    for _ in range(2):  # there, and back if it is not there, either
      if not self._notes.deny(self.known):
        return
      self._address_book.reconsider()
      if self._address_book.addresses == self._at:
        return
      self._fence.take({'ps': self._connect()})
      self.known = self._address_book.incarnations()
      self._shared.rejoin()

  def is_due(self, error: tf.errors.OpError) -> bool:
    """Whether something has failed because of a ps."""
    if self._address_book.incarnations() != self.known:
      return True
    if isinstance(error, _OUT_OF_REACH):
      return '/job:ps' in str(error)
    return isinstance(error, _NOT_THERE) and bool(self._inventory.emptied())

  def check(self) -> None:
    """Makes sure that no other process is this task.

    Raises:
      errors.ReplacedError: one is.
    """
    self._fence.check({'ps': self.known})

  def mend(self, deadline: float | None) -> None:
    """Goes on with the ps that are there, once all are.

    Nothing else is to be done on a ps meanwhile.

    Raises:
      errors.CheckpointError: not all variables had been saved.
      errors.DeadlineError: names the ps, or the chief, that has not come back.
      errors.ReplacedError: another process is this task by now.
    """
    begun = time.monotonic()
    found: Found = {}
    with consistency_note_lib.Reader() as reader:
      while True:
        lost_secs = time.monotonic() - begun
        try:
          found = self._address_book.incarnations()
          note = None
          if self._snapshotter is not None:
            found = self._replace(found, lost_secs)
          else:
            note = self._note(found, reader)
            found = self._follow(found, note)
          if None not in found.values() and self._has_mended(found, note):
            return
        except (tf.errors.OpError, errors.UnreachableError) as error:
          logging.warning('A lost ps could not be taken back: %s', error)
        except errors.DeadlineError as error:  # as of what others execute
          if deadlines.is_over(deadline):
            raise
          logging.warning('A lost ps could not be taken back: %s', error)
        if deadlines.is_over(deadline):
          raise self._give_up(found)
        times = timeouts.current()
        secs = max(times.repair_min_poll_secs, _PATIENCE * lost_secs)
        time.sleep(min(times.repair_poll_secs, secs))

  def _replace(self, found: Found, lost_secs: float) -> Found:
    """As found; the chief has those taken over that are not there."""
    silent = {ps for ps, incarnation in found.items() if incarnation is None}
    if not silent:
      return found
    before = self._address_book.addresses.copy()
    self._address_book.fail_over_if_due(
      silent, lost_secs, self._recovery.waits_for_restart_secs
    )
    moved = self._address_book.addresses != before
    return self._address_book.incarnations() if moved else found

  def _note(
    self, found: Found, reader: consistency_note_lib.Reader
  ) -> Found | None:
    """The ps that the chief goes on with, if one that was not lost knows."""
    for ps, incarnation in found.items():
      if incarnation is not None and incarnation == self.known[ps]:
        task = spec_lib.Task('ps', ps)
        return reader.read(task, self._address_book.addresses[task])
    return None

  def _follow(self, found: Found, note: Found | None) -> Found:
    """As found; goes to ps that are not where they were.

    Nobody but the chief decides which of two is the ps.
    """
    now = time.monotonic()
    if found == note:
      return found
    if note in (None, self.known) and now < self._next_look:
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

  def _has_mended(self, found: Found, note: Found | None) -> bool:
    if note is not None and note != found != self.known:
      return False  # the chief is still at it
    # Where another process was this task, long ago, it may still be known.
    addresses = self._address_book.addresses
    stay = {
      task.index for task in addresses if addresses[task] == self._at[task]
    }
    self._fence.check({'ps': stay})
    lost = {ps for ps in found if found[ps] != self.known[ps]} | self._left
    if not lost and self._snapshotter is not None:
      lost = self._inventory.emptied()
    if not lost and (
      self._snapshotter is not None or not self._notes.deny(found)
    ):
      time.sleep(timeouts.current().poll_secs)
      return True
    survivors = {spec_lib.Task('ps', ps) for ps in found if ps not in lost}
    self._greet({*self._address_book.moved, *survivors})
    self._left |= self._connect()
    lost |= self._left
    if self._snapshotter is None and not self._notes.are(found):
      return False  # the chief is still at it
    self._replicas.renew(self._inventory.on(lost), lost)
    self._shared.rejoin()
    secs = None
    if self._snapshotter is not None:
      secs = self._snapshotter.restore(lost, self._replicas)
      self._shared.announce(self._inventory.on(set(found)))
      self._notes.leave(found)
    self.known, self._left = found, set()
    self._fence.take({'ps': lost})
    for task in self._address_book.pop_moves():
      self._events.tell('moved', [str(task)])
    self._events.tell('back', [f'ps:{i}' for i in sorted(lost)], secs)
    return True

  def _connect(self) -> set[int]:
    """Tells the runtime where the ps are; those that are elsewhere now."""
    addresses = dict(self._address_book.addresses)
    server_def.update(
      moved={(t.job, t.index): at for t, at in addresses.items()}
    )
    elsewhere = {t.index for t in addresses if addresses[t] != self._at[t]}
    self._at = addresses
    return elsewhere

  def _give_up(self, found: Found) -> errors.DeadlineError:
    secs = self._recovery.timeout_secs
    missing = [f'ps:{ps}' for ps, value in found.items() if value is None]
    if missing:
      return errors.not_restarted(missing, secs)
    return errors.DeadlineError(
      f'After {secs:g} seconds, the chief has not brought back the variables. '
      'Is it alive?'
    )
