"""Has workers that share variables go on after the loss of a ps.

Each worker finds the loss by itself, in what it was doing, and tells its own
runtime. The chief puts the values back and then leaves a note on every ps, for
which the other workers wait. They read it on a ps that was not lost; it tells
them, too, which ps to go on with, should a lost one answer at two addresses.
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
import contextlib
import threading
import time
from typing import Any
from typing import TypeVar

from absl import logging
import tensorflow as tf

from tfps import _deadline
from tfps import _gate
from tfps import _housing
from tfps import _lease
from tfps import _standstill
from tfps import cluster as cluster_lib
from tfps import errors
from tfps import shared_variables
from tfps._compat import members
from tfps.recovery import config
from tfps.recovery import events
from tfps.recovery import inventory
from tfps.recovery import keeper as keeper_lib
from tfps.recovery import moves
from tfps.recovery import notes as notes_lib
from tfps.recovery import replicas as replicas_lib

_Result = TypeVar('_Result')
_Found = dict[int, int | None]  # by ps, its incarnation

_POLL_SECS = 0.1
_LOOK_SECS = 0.2  # how often to look for a lost ps elsewhere
_MIN_POLL_SECS = 0.03
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


class SharedGuard:
  """Keeps the variables that several processes share; each has one.

  Args:
    recovery: how; the same in all of them.
    housing: of the ps.
    task: of this process.
    chief: who saves the variables and puts them back, perhaps this process;
      with its address.
    shared: makes them.
    device: of this process.
    greet: tells the servers of this process, but for those that are guests;
      called when some have restarted.
    lease: of this process.

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
    housing: _housing.Housing,
    task: cluster_lib.Task,
    chief: tuple[cluster_lib.Task, str],
    shared: shared_variables.SharedVariables,
    device: str,
    greet: Callable[[Collection[cluster_lib.Task]], object],
    lease: _lease.Lease,
  ) -> None:
    is_chief = task == chief[0]
    self._task, self._chief = task, chief
    self._lease = lease
    self._housing = housing
    self._replicas = replicas_lib.Replicas(recovery, len(housing.addresses))
    self.events = events.Events(recovery.on_event)
    self._shared = shared
    self._greet = greet
    self._recovery = recovery
    self._gate = _gate.Gate()
    self.num_interruptions = 0
    self._own = threading.local()  # whether a thread is surviving already
    self._notes = notes_lib.Notes()
    self._known = self._housing.incarnations()
    self._at = dict(housing.addresses)  # where the runtime has them
    # With whom the connection is new: what was held there has to be, too.
    self._left: set[int] = set()
    self._next_look = 0.0  # for a lost ps elsewhere
    self._keeper: keeper_lib.Keeper | None = None
    self._inventory = inventory.Inventory()
    # Whether what is on the ps is not, or not all, from this very job.
    self._begins_anew = is_chief and not self._notes.are(self._known)
    self._moves: moves.Moves | None = None
    if is_chief:
      self._keeper = keeper_lib.Keeper(
        recovery,
        device=device,
        num_ps=len(housing.addresses),
        confirm=lease.check,
        is_shared=True,
      )
      self._inventory = self._keeper.inventory
      self._keeper.start(self._gate)
      self._replicas.start()
      self._moves = self._start_moves()
    else:
      self._find_who_has_moved()

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
    if self._keeper is None:
      self._replicas.attach(entry)
      return
    if self._begins_anew:
      self._keeper.begin(entry)
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

  def do_without(self, task: cluster_lib.Task) -> None:
    """Lets a ps end: the chief has another one serve what it has."""
    moves_ps = self._moves if self._recovery.moves_ps else None
    if moves_ps is not None and moves_ps.hand_over(task):
      return
    if self._keeper is not None:
      try:
        self._keeper.cut()
        self._replicas.refresh()
      except (tf.errors.OpError, errors.CheckpointError) as error:
        logging.warning('%s leaves, and no cut was made: %s', task, error)

  def stand_still(self, call: _standstill.Call) -> None:
    """Executes nothing until the chief has moved what it wants to move."""
    threading.Thread(
      target=self._stand_still,
      args=(call,),
      name='tfps-standstill',
      daemon=True,
    ).start()

  def keep(self) -> None:
    """Has a loss from now on take nothing away, if this is the chief.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    if self._keeper is not None:
      self._keeper.cut_if_possible()
      self._replicas.refresh()

  def save_for_good(self) -> None:
    """Makes a last cut, if this is the chief; then trains no more."""
    self._gate.close()
    if self._keeper is not None:
      self._keeper.cut_at_last()

  def meet_by(
    self, start: Callable[[], object], quiet: keeper_lib.Quiet | None
  ) -> None:
    """Has the chief note that workers wait for each other.

    Args:
      start: called each time that variables have been put back.
      quiet: as for `Keeper.keep_quiet_by`; None for this process' gate.
    """
    if self._keeper is not None:
      self._keeper.and_then(start)
      self._keeper.keep_quiet_by(quiet)
    if self._moves is not None:
      # They come to no halt one by one: each waits for the others.
      self._moves.stop()
      self._moves = None

  def stop(self) -> None:
    """Makes no more cuts; twice is harmless."""
    if self._keeper is not None:
      self._keeper.stop()
      self._replicas.stop()
    if self._moves is not None:
      self._moves.stop()

  def _start_moves(self) -> moves.Moves:
    assert self._keeper is not None
    started = moves.Moves(
      self._task,
      housing=self._housing,
      keeper=self._keeper,
      replicas=self._replicas,
      notes=self._notes,
      alone=self._alone,
      mend=self._mend_alone,
    )
    started.start()
    return started

  def _stand_still(self, call: _standstill.Call) -> None:
    with self._alone():
      self._housing.go(call.keep(self._task, *self._chief))
      try:
        self._mend_alone()
      except (errors.DeadlineError, errors.ReplacedError) as error:
        # Which the program will learn by itself.
        logging.warning('%s', error)

  def _find_who_has_moved(self) -> None:
    """Goes to where ps are that were moved as this process connected."""
    try:
      for _ in range(2):  # there, and back if it is not there, either
        if not self._notes.deny(self._known):
          return
        self._housing.reconsider()
        if moved := self._connect():
          self._lease.take({'ps': moved})
          self._known = self._housing.incarnations()
          self._shared.rejoin()
    except tf.errors.OpError as error:
      logging.warning('A ps is lost, or out of reach: %s', error)
      self._mend(_deadline.after(self._recovery.timeout_secs))
    finally:
      self._housing.forget_moves()

  @contextlib.contextmanager
  def _alone(self) -> Iterator[None]:
    """Within it, only this thread does anything on a ps."""
    with self._gate.closed():
      before = getattr(self._own, 'is_surviving', False)
      self._own.is_surviving = True
      try:
        yield
      finally:
        self._own.is_surviving = before

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
          with self._gate:
            return function()
        except tf.errors.OpError as error:
          deadline = deadline or _deadline.after(self._recovery.timeout_secs)
          if _deadline.is_over(deadline) or not self._is_about_ps(error):
            raise
          logging.warning('A ps is lost, or out of reach: %s', error)
          self.num_interruptions += 1
        self._mend(deadline)
    finally:
      self._own.is_surviving = False

  def _cover(self) -> None:
    if self._keeper is not None:
      self._keeper.cover()
      self._replicas.cover()
      if self._begins_anew:
        self._notes.leave(self._known)
        self._begins_anew = False

  def _is_about_ps(self, error: tf.errors.OpError) -> bool:
    if self._housing.incarnations() != self._known:
      return True
    if isinstance(error, _OUT_OF_REACH):
      return '/job:ps' in str(error)
    return isinstance(error, _NOT_THERE) and bool(self._inventory.emptied())

  def _mend(self, deadline: float | None) -> None:
    """Goes on with the ps that are there, once all are."""
    with self._alone():
      self._mend_until(deadline)

  def _mend_alone(self) -> None:
    """As `_mend`, of who is alone already."""
    self._mend_until(_deadline.after(self._recovery.timeout_secs))

  def _mend_until(self, deadline: float | None) -> None:
    begun = time.monotonic()
    found: _Found = {}
    with notes_lib.Reader() as reader:
      while True:
        lost_secs = time.monotonic() - begun
        try:
          found = self._housing.incarnations()
          note = None
          if self._keeper is not None:
            found = self._replace(found, lost_secs)
          else:
            note = self._note(found, reader)
            found = self._follow(found, note)
          if None not in found.values() and self._has_mended(found, note):
            return
        except (tf.errors.OpError, errors.UnreachableError) as error:
          logging.warning('A lost ps could not be taken back: %s', error)
        if _deadline.is_over(deadline):
          raise self._give_up(found)
        time.sleep(min(_POLL_SECS, max(_MIN_POLL_SECS, _PATIENCE * lost_secs)))

  def _replace(self, found: _Found, lost_secs: float) -> _Found:
    """As found; the chief has those taken over that are not there."""
    silent = {ps for ps, incarnation in found.items() if incarnation is None}
    if not silent:
      return found
    before = self._housing.addresses.copy()
    self._housing.replace(
      silent, lost_secs, self._recovery.waits_for_restart_secs
    )
    moved = self._housing.addresses != before
    return self._housing.incarnations() if moved else found

  def _note(self, found: _Found, reader: notes_lib.Reader) -> _Found | None:
    """The ps that the chief goes on with, if one that was not lost knows."""
    for ps, incarnation in found.items():
      if incarnation is not None and incarnation == self._known[ps]:
        task = cluster_lib.Task('ps', ps)
        return reader.read(task, self._housing.addresses[task])
    return None

  def _follow(self, found: _Found, note: _Found | None) -> _Found:
    """As found; goes to ps that are not where they were.

    Nobody but the chief decides which of two is the ps.
    """
    now = time.monotonic()
    if found == note:
      return found
    if note in (None, self._known) and now < self._next_look:
      return found
    self._next_look = now + _LOOK_SECS
    before = self._housing.addresses.copy()
    silent = {ps for ps, incarnation in found.items() if incarnation is None}
    if note is not None:
      self._housing.seek(note)
    elif silent:
      self._housing.follow(silent)
    else:
      self._housing.reconsider()
    moved = self._housing.addresses != before
    return self._housing.incarnations() if moved else found

  def _has_mended(self, found: _Found, note: _Found | None) -> bool:
    if note is not None and note != found != self._known:
      return False  # the chief is still at it
    # Where another process was this task, long ago, it may still be known.
    addresses = self._housing.addresses
    stay = {
      task.index for task in addresses if addresses[task] == self._at[task]
    }
    self._lease.check({'ps': stay})
    lost = {ps for ps in found if found[ps] != self._known[ps]} | self._left
    if not lost and self._keeper is not None:
      lost = self._inventory.emptied()
    if not lost and (self._keeper is not None or not self._notes.deny(found)):
      time.sleep(_POLL_SECS)
      return True
    survivors = {cluster_lib.Task('ps', ps) for ps in found if ps not in lost}
    self._greet({*self._housing.moved, *survivors})
    self._left |= self._connect()
    lost |= self._left
    if self._keeper is None and not self._notes.are(found):
      return False  # the chief is still at it
    self._replicas.renew(self._inventory.on(lost), lost)
    self._shared.rejoin()
    secs = None
    if self._keeper is not None:
      secs = self._keeper.put_back(lost, self._replicas)
      self._shared.announce(self._inventory.on(set(found)))
      self._notes.leave(found)
    self._known, self._left = found, set()
    self._lease.take({'ps': lost})
    for task in self._housing.forget_moves():
      self.events.tell('moved', [str(task)])
    self.events.tell('back', [f'ps:{i}' for i in sorted(lost)], secs)
    return True

  def _connect(self) -> set[int]:
    """Tells the runtime where the ps are; those that are elsewhere now."""
    addresses = dict(self._housing.addresses)
    members.update(moved={(t.job, t.index): at for t, at in addresses.items()})
    elsewhere = {t.index for t in addresses if addresses[t] != self._at[t]}
    self._at = addresses
    return elsewhere

  def _give_up(self, found: _Found) -> errors.DeadlineError:
    secs = self._recovery.timeout_secs
    missing = [f'ps:{ps}' for ps, value in found.items() if value is None]
    if missing:
      return errors.not_back(missing, secs)
    return errors.DeadlineError(
      f'After {secs:g} seconds, the chief has not brought back the variables. '
      'Is it alive?'
    )
