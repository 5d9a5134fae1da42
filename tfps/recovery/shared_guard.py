"""Has workers that share variables go on after the loss of a ps.

Each worker finds the loss by itself, in what it was doing, and tells its own
runtime. The chief puts the values back and then leaves a note on every ps, for
which the other workers wait.
"""

from collections.abc import Callable
from collections.abc import Collection
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
from tfps import cluster as cluster_lib
from tfps import errors
from tfps import shared_variables
from tfps._compat import members
from tfps.recovery import config
from tfps.recovery import events
from tfps.recovery import inventory
from tfps.recovery import keeper as keeper_lib
from tfps.recovery import notes as notes_lib
from tfps.recovery import replicas as replicas_lib

_Result = TypeVar('_Result')

_POLL_SECS = 0.1
_LOOK_SECS = 0.2  # how often to look for a lost ps elsewhere
_OUT_OF_REACH = (tf.errors.UnavailableError, tf.errors.AbortedError)
_NOT_THERE = (tf.errors.NotFoundError, tf.errors.FailedPreconditionError)


class SharedGuard:
  """Keeps the variables that several processes share; each has one.

  Args:
    recovery: how; the same in all of them.
    housing: of the ps.
    is_chief: whether this process saves the variables and puts them back.
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
    is_chief: bool,
    shared: shared_variables.SharedVariables,
    device: str,
    greet: Callable[[Collection[cluster_lib.Task]], object],
    lease: _lease.Lease,
  ) -> None:
    self._lease = lease
    self._housing = housing
    self._replicas = replicas_lib.Replicas(recovery, len(housing.addresses))
    self.events = events.Events(recovery.on_event)
    self._shared = shared
    self._greet = greet
    self._timeout_secs = recovery.timeout_secs
    self._take_over_secs = recovery.take_over_secs
    self._gate = _gate.Gate()
    self.num_interruptions = 0
    self._own = threading.local()  # whether a thread is surviving already
    self._notes = notes_lib.Notes()
    self._known = self._housing.incarnations()
    self._keeper: keeper_lib.Keeper | None = None
    self._inventory = inventory.Inventory()
    # Whether what is on the ps is not, or not all, from this very job.
    self._begins_anew = is_chief and not self._notes.are(self._known)
    if is_chief:
      self._keeper = keeper_lib.Keeper(
        recovery,
        device=device,
        num_ps=len(housing.addresses),
        confirm=lease.check,
      )
      self._inventory = self._keeper.inventory
      self._keeper.start(self._gate)
      self._replicas.start()

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
    """Lets a ps end: the chief makes a cut."""
    if self._keeper is not None:
      try:
        self._keeper.cut()
        self._replicas.refresh()
      except (tf.errors.OpError, errors.CheckpointError) as error:
        logging.warning('%s leaves, and no cut was made: %s', task, error)

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

  def stop(self) -> None:
    """Makes no more cuts; twice is harmless."""
    if self._keeper is not None:
      self._keeper.stop()
      self._replicas.stop()

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
          deadline = deadline or _deadline.after(self._timeout_secs)
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
    begun = last_look = time.monotonic()
    with self._gate.closed():
      while True:
        found = self._housing.incarnations()
        try:
          if None not in found.values() and self._has_mended(found):
            return
          if time.monotonic() > last_look + _LOOK_SECS:
            last_look = time.monotonic()
            self._look_elsewhere(found, last_look - begun)
        except (tf.errors.OpError, errors.UnreachableError) as error:
          logging.warning('A lost ps could not be taken back: %s', error)
        if _deadline.is_over(deadline):
          raise self._give_up(found)
        time.sleep(_POLL_SECS)

  def _has_mended(self, found: dict[int, int | None]) -> bool:
    self._lease.check()
    lost = {ps for ps in found if found[ps] != self._known[ps]}
    if not lost and self._keeper is not None:
      lost = self._inventory.emptied()
    if not lost:
      time.sleep(_POLL_SECS)
      return True
    self._greet(self._housing.moved)
    members.update(
      moved={
        (task.job, task.index): address
        for task, address in self._housing.addresses.items()
      }
    )
    if self._keeper is None and not self._notes.are(found):
      return False  # the chief is still at it
    self._replicas.renew(self._inventory.on(lost), lost)
    self._shared.rejoin()
    secs = None
    if self._keeper is not None:
      secs = self._keeper.put_back(lost, self._replicas)
      self._shared.announce(self._inventory.on(set(found)))
      self._notes.leave(found)
    self._known = found
    self._lease.take({'ps': lost})
    for task in self._housing.forget_moves():
      self.events.tell('moved', [str(task)])
    self.events.tell('back', [f'ps:{i}' for i in sorted(lost)], secs)
    return True

  def _look_elsewhere(
    self, found: dict[int, int | None], lost_secs: float
  ) -> None:
    """Finds ps that are not where they were; the chief has them taken over."""
    silent = {ps for ps, incarnation in found.items() if incarnation is None}
    if self._keeper is None:
      # Nobody but the chief decides which of two is the ps.
      if silent:
        self._housing.follow(silent)
      else:
        self._housing.reconsider()
    elif silent:
      self._housing.replace(silent, lost_secs, self._take_over_secs)

  def _give_up(self, found: dict[int, int | None]) -> errors.DeadlineError:
    missing = [f'ps:{ps}' for ps, value in found.items() if value is None]
    if missing:
      return errors.not_back(missing, self._timeout_secs)
    return errors.DeadlineError(
      f'After {self._timeout_secs:g} seconds, the chief has not brought back '
      'the variables. Is it alive?'
    )
