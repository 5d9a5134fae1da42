"""Keeps what variables are: notes them, saves them and puts them back."""

import atexit
from collections.abc import Callable
import contextlib
import dataclasses
import threading
import time

from absl import logging
import tensorflow as tf

from tfps import errors
from tfps._compat import stale_cache
from tfps._utils import quiesce_lock
from tfps._utils import threads
from tfps.recovery import config
from tfps.recovery import inventory
from tfps.recovery import replicas as replicas_lib
from tfps.recovery import snapshot_reader
from tfps.recovery import snapshot_storage
from tfps.recovery import snapshots


@dataclasses.dataclass(frozen=True)
class _Taken:
  """What is to be written as a cut.

  Attributes:
    covers: the number of variables and of the gate's entries.
    entries: the variables.
    values: theirs.
    read_at: when they were read, by `time.monotonic`.
  """

  covers: tuple[int, int]
  entries: list[inventory.Entry]
  values: list[snapshot_storage.Values]
  read_at: float


Quiet = Callable[[], contextlib.AbstractContextManager[None]]


class Snapshotter:
  """Saves variables as they are while nobody is inside a gate.

  Args:
    recovery: how often, and where to.
    device: of this process.
    num_ps: how many ps there are.
    confirm: raises an error if this process may write no more.
    is_shared: whether others write to the variables, too, who are inside of no
      gate of this process.

  Attributes:
    inventory: the variables.
    begun_with: the cut that was there when this process began.

  Raises:
    errors.CheckpointError: the directory cannot be used.
  """

  def __init__(
    self,
    recovery: config.Recovery,
    *,
    device: str,
    num_ps: int,
    confirm: Callable[[], object],
    is_shared: bool = False,
  ) -> None:
    by_ps = recovery.written_by == 'ps'
    self._store = snapshots.SnapshotStore(
      recovery.directory,
      max_to_keep=recovery.max_to_keep,
      device=device,
      disk=snapshot_storage.OfAll(num_ps)
      if by_ps
      else snapshot_storage.OfChief(device),
      confirm=confirm,
    )
    self.begun_with = self._store.latest
    if self.begun_with is not None:
      logging.warning('There is %s to begin with.', self.begun_with.path)
    self.inventory = inventory.Inventory()
    self._reader = snapshot_reader.Reader()
    self.gate = quiesce_lock.QuiesceLock()
    self._timeout_secs = recovery.timeout_secs
    self._quiet: Quiet = self.alone
    self._and_then: list[Callable[[], object]] = []
    # Taken while the gate is closed, and held until a cut is on disk.
    self._writing = threading.Lock()
    # The variables and the gate's entries that the latest cut covers.
    self._covered = (0, 0)
    self._is_shared = is_shared
    self._read_at = 0.0
    self._period = threads.Periodic(
      'tfps-recovery', recovery.every_secs, self._save_or_log
    )

  @property
  def latest(self) -> snapshots.Snapshot | None:
    """The last cut that was written, here or before."""
    return self._store.latest

  def start(self, gate: quiesce_lock.QuiesceLock) -> None:
    """Makes cuts from now on, while nobody is inside the gate."""
    self.gate = gate
    self._period.start()
    # Or a cut that is being written as the program ends would stay a draft.
    atexit.register(self.stop)

  def stop(self) -> None:
    """Makes no more cuts; twice is harmless."""
    atexit.unregister(self.stop)
    self._period.stop()

  def save(self) -> None:
    """Makes a cut now, unless nobody was inside the gate since the last.

    Raises:
      errors.CheckpointError: it could not be written.
      errors.DeadlineError: names who has not come to rest for it.
      tf.errors.OpError: a ps is lost.
    """
    with contextlib.ExitStack() as writing:
      with self._quiet():
        writing.enter_context(self._writing)
        taken = self._take()
      self._write(taken)

  def save_quiesced(self) -> None:
    """As `snapshot`, by who has closed the gate."""
    with self._writing:
      self._write(self._take())

  def save_at_last(self) -> None:
    """As `save_quiesced`, by who then ends; what goes wrong is only logged."""
    try:
      self.save_quiesced()
    except (tf.errors.OpError, errors.CheckpointError) as error:
      logging.warning('The last cut could not be made: %s', error)

  def save_if_possible(self) -> None:
    """As `snapshot`, but where it cannot be written, that is only logged.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    try:
      self.save()
    except errors.CheckpointError as error:
      logging.warning('The variables could not be saved: %s', error)

  def cover(self) -> None:
    """Makes a cut if the last one lacks a variable: it could not come back."""
    if self._covered[0] != len(self.inventory):
      self.save()

  def has_begun_with(self, entry: inventory.Entry) -> bool:
    """Whether a variable is in the cut that was there to begin with."""
    snapshot = self.begun_with
    return snapshot is not None and entry.key in snapshot.contents

  def begin(self, entry: inventory.Entry) -> None:
    """Gives a new variable its value in the cut that was there to begin with.

    Raises:
      errors.CheckpointError: the cut has another variable of that name.
    """
    snapshot = self.begun_with
    if snapshot is not None and entry.key in snapshot.contents:
      with tf.init_scope():
        self._put_back(entry, snapshot)

  def put_back(
    self, ps: set[int], replicas: replicas_lib.Replicas
  ) -> float | None:
    """Has variables on ps that have restarted as they were; the gate is closed.

    If nobody has their values any more, all variables get those of the last
    cut.

    Args:
      ps: their indices.
      replicas: of the variables.

    Returns:
      How long ago the variables had these values, in seconds; None where that
      is not known.

    Raises:
      errors.CheckpointError: there is no cut of all variables, or none that
        can be read.
      tf.errors.OpError: a ps is lost.
    """
    secs = self._put_back_on(ps, replicas)
    for function in self._and_then:
      function()
    return secs

  def alone(
    self, tell: Callable[[bool], object] = lambda rest: None
  ) -> contextlib.AbstractContextManager[None]:
    """In which nobody is inside the gate.

    Args:
      tell: as for `Gate.closed`.

    Raises:
      errors.DeadlineError: names who is still inside.
    """
    return quiesce_lock.quiesced(self.gate, self._timeout_secs, tell)

  def keep_quiet_by(self, quiet: Quiet | None) -> None:
    """Makes cuts within a context in which nobody updates, gate or not."""
    self._quiet = quiet or self.alone

  def and_then(self, function: Callable[[], object]) -> None:
    """Calls a function each time that variables have been put back."""
    self._and_then.append(function)

  def _put_back_on(
    self, ps: set[int], replicas: replicas_lib.Replicas
  ) -> float | None:
    lost = inventory.say(ps)
    if not replicas.have_all_of(ps):
      since_cut = self._put_all_back(lost)
      replicas.copy()
      return since_cut
    with self._writing:
      secs = replicas.put_back(ps)
      self._check_values()
    logging.warning(
      '%s was lost and is back, with all it had%s.', lost, _ago(secs)
    )
    return secs

  def _put_all_back(self, lost: str) -> float:
    with self._writing:
      try:
        snapshot = self._put_latest_back(lost)
      except errors.CheckpointError as error:
        logging.warning('%s', error)
        self._find_another()
        snapshot = self._put_latest_back(lost)
      self._check_values()
    secs = time.monotonic() - self._read_at
    logging.warning(
      '%s was lost and is back. All variables are as they were %.1f seconds '
      'ago (%s).',
      lost,
      secs,
      snapshot.path,
    )
    return secs

  def _put_latest_back(self, lost: str) -> snapshots.Snapshot:
    entries = self.inventory.entries()
    snapshot = self._store.latest
    if snapshot is None or any(e.key not in snapshot.contents for e in entries):
      raise errors.CheckpointError(
        f'{lost} was lost, and there is no cut of all variables.'
      )
    for entry in entries:
      self._put_back(entry, snapshot)
    return snapshot

  def _find_another(self) -> None:
    """Has an earlier cut be the latest, should that be damaged."""
    snapshot = self._store.find()
    if snapshot is not None:
      self._read_at = time.monotonic() - snapshot.age_secs
    # The next cut is due, although nothing may be executed until then.
    self._covered = (self._covered[0], -1)

  def _check_values(self) -> None:
    if emptied := self.inventory.emptied():
      raise tf.errors.UnavailableError(
        None, None, f'{inventory.say(emptied)} could not take all values.'
      )

  def _put_back(
    self, entry: inventory.Entry, snapshot: snapshots.Snapshot
  ) -> None:
    snapshot.check(entry)
    for piece in entry.pieces():
      piece.variable.assign(self._store.read(snapshot, piece))

  def _take(self) -> '_Taken | None':
    """What there is to write; None if the last cut has it all."""
    covers = (len(self.inventory), self.gate.num_entries)
    others_write = self._is_shared or self.gate.num_inside
    if covers == self._covered and not others_write:
      return None
    entries = self.inventory.entries()
    values = self._reader.read(entries)
    return _Taken(covers, entries, values, time.monotonic())

  def _write(self, taken: '_Taken | None') -> None:
    if taken is not None:
      self._store.write(taken.entries, taken.values)
      self._covered = taken.covers
      self._read_at = taken.read_at

  def _save_or_log(self) -> None:
    try:
      self.save()
    except (
      tf.errors.OpError,
      errors.CheckpointError,
      errors.DeadlineError,
    ) as error:
      logging.warning('The variables could not be saved: %s', error)
      stale_cache.forget_if_stale(error)
    except errors.ReplacedError as error:
      logging.error('%s', error)


def _ago(secs: float | None) -> str:
  if secs is None:
    return ' at the last copy'
  return f' {secs:.1f} seconds ago' if secs else ''
