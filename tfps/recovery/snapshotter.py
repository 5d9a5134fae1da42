"""Saves variables in snapshots and restores them."""

import atexit
from collections.abc import Callable
import contextlib
import dataclasses
import functools
import threading
import time

from absl import logging
import tensorflow as tf

from tfps import errors
from tfps._compat import stale_cache
from tfps._utils import quiesce_lock
from tfps._utils import threads
from tfps.recovery import config
from tfps.recovery import frozen_rows
from tfps.recovery import inventory
from tfps.recovery import replicas as replicas_lib
from tfps.recovery import saved_tables as saved_tables_lib
from tfps.recovery import snapshot_storage
from tfps.recovery import snapshots
from tfps.recovery import variable_reader


@dataclasses.dataclass(frozen=True)
class _Draft:
  """Values that are to be written as a snapshot.

  Attributes:
    covers: number of variables, number of the gate's entries, and last write
      outside of functions.
    entries: the variables.
    values: their values.
    read_at: time of reading, as of `time.monotonic`.
  """

  covers: tuple[int, int, int]
  entries: list[inventory.Entry]
  values: list[snapshot_storage.Values]
  read_at: float


Quiet = Callable[[], contextlib.AbstractContextManager[None]]


class Snapshotter:
  """Writes snapshots while a gate is closed, and restores variables from them.

  Args:
    recovery: settings.
    device: CPU of this process.
    num_ps: number of ps.
    confirm: raises an error if this process may no longer write.
    is_shared: whether other processes, or calls that do not use this process'
      gate, write to the variables, too.

  Attributes:
    inventory: the variables.
    begun_with: last snapshot when this process started; None if none.
    gate: entered by whatever is executed in this process.

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
      disk=snapshot_storage.SharedDisk(num_ps)
      if by_ps
      else snapshot_storage.ChiefDisk(device),
      confirm=confirm,
    )
    self.begun_with = self._store.latest
    self._read_at = 0.0
    if self.begun_with is not None:
      logging.warning('Found snapshot %s.', self.begun_with.path)
      self._note_age(self.begun_with)
    self.inventory = inventory.Inventory()
    self._reader = variable_reader.VariableReader()
    self.gate = quiesce_lock.QuiesceLock()
    self._timeout_secs = recovery.timeout_secs
    self._quiet: Quiet = self.alone
    self._on_restored: list[Callable[[], object]] = []
    # Acquired while the gate is closed, and held until a snapshot is on disk.
    self._writing = threading.Lock()
    # Whether all variables of `begun_with` are made that the program has.
    self._are_all_made = self.begun_with is None
    # `_Draft.covers` of the latest snapshot.
    self._covered = (0, 0, 0)
    self._is_shared = is_shared
    self._period = threads.Periodic(
      'tfps-recovery', recovery.every_secs, self._save_or_log
    )

  @property
  def latest(self) -> snapshots.Snapshot | None:
    """Last snapshot, written by this process or before."""
    return self._store.latest

  def start(self, gate: quiesce_lock.QuiesceLock) -> None:
    """Starts to write snapshots periodically.

    Args:
      gate: closed while values are read.
    """
    self.gate = gate
    self._period.start()
    # Lets a snapshot that is being written at exit be completed.
    atexit.register(self.stop)

  def stop(self) -> None:
    """Writes no more snapshots; stopping twice is harmless."""
    atexit.unregister(self.stop)
    self._period.stop()

  def save(self) -> None:
    """Writes a snapshot now, unless nothing was written since the last.

    Raises:
      errors.CheckpointError: it could not be written.
      errors.DeadlineError: names what is still executing.
      tf.errors.OpError: a ps is lost.
    """
    self._save(self._quiet())

  def save_quiesced(self) -> None:
    """Writes a snapshot as `save` does; the caller has closed the gate."""
    self._save(contextlib.nullcontext())

  def save_at_last(self) -> None:
    """Writes the last snapshot before an exit; failures are only logged."""
    try:
      self.save_quiesced()
    except (tf.errors.OpError, errors.CheckpointError) as error:
      logging.warning('The last snapshot could not be written: %s', error)

  def note_writes(self) -> None:
    """Makes a snapshot due although nothing was executed."""
    self.inventory.writes.note()

  def cover(self) -> None:
    """Writes a snapshot if the last one lacks a variable.

    See `save` for its errors.
    """
    self._are_all_made = True
    if self._covered[0] != len(self.inventory):
      self.save()

  def has_begun_with(self, entry: inventory.Entry) -> bool:
    """Returns whether a variable is in `begun_with`."""
    snapshot = self.begun_with
    return snapshot is not None and entry.key in snapshot.contents

  def begin(self, entry: inventory.Entry) -> None:
    """Gives a new variable its value in `begun_with`, if it has one.

    Raises:
      errors.CheckpointError: the snapshot has another variable of that name.
    """
    snapshot = self.begun_with
    if snapshot is not None and entry.key in snapshot.contents:
      with tf.init_scope():
        self._restore_entry(entry, snapshot)

  @property
  def saved_tables(self) -> saved_tables_lib.SavedTables | None:
    """Tables of `begun_with`; None without such a snapshot."""
    if self.begun_with is None:
      return None
    return saved_tables_lib.SavedTables(self.begun_with, self.inventory)

  def restore(
    self, ps: set[int], replicas: replicas_lib.Replicas
  ) -> float | None:
    """Restores variables on ps that have restarted; the gate is closed.

    If replicas do not have all of their values, all variables are restored from
    the last snapshot.

    Args:
      ps: indices of the ps.
      replicas: replicas of the variables.

    Returns:
      How long ago the variables had these values, in seconds; None if that is
      not known.

    Raises:
      errors.CheckpointError: there is no snapshot of all variables, or none
        that can be read.
      tf.errors.OpError: a ps is lost.
    """
    secs = self._restore_on(ps, replicas)
    for function in self._on_restored:
      function()
    return secs

  def alone(
    self, tell: Callable[[bool], object] = lambda rest: None
  ) -> contextlib.AbstractContextManager[None]:
    """Returns a context in which the gate is closed and empty.

    Args:
      tell: see `QuiesceLock.closed`.

    Raises:
      errors.DeadlineError: names what is still executing.
    """
    return quiesce_lock.quiesced(self.gate, self._timeout_secs, tell)

  def quiesce_with(self, quiet: Quiet | None) -> None:
    """Reads values within another context than `alone`; None for `alone`."""
    self._quiet = quiet or self.alone

  def on_restored(self, function: Callable[[], object]) -> None:
    """Adds a function that is called each time variables were restored."""
    self._on_restored.append(function)

  def _restore_on(
    self, ps: set[int], replicas: replicas_lib.Replicas
  ) -> float | None:
    lost = inventory.format_ps(ps)
    if not replicas.have_all_of(ps):
      snapshot_secs = self._restore_all(lost)
      replicas.copy()
      return snapshot_secs
    with self._writing:
      secs = replicas.restore(ps)
      self._check_values()
    logging.warning(
      '%s was lost and is back, with all it had%s.', lost, _ago(secs)
    )
    return secs

  def _restore_all(self, lost: str) -> float:
    with self._writing:
      try:
        snapshot = self._restore_latest(lost)
      except errors.CheckpointError as error:
        logging.warning('%s', error)
        self._fall_back()
        snapshot = self._restore_latest(lost)
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

  def _restore_latest(self, lost: str) -> snapshots.Snapshot:
    entries = self.inventory.entries()
    snapshot = self._store.latest
    keys = [entry.key for entry in entries]
    if (
      snapshot is None
      or any(key not in snapshot.contents for key in keys)
      or not saved_tables_lib.are_alike(snapshot.contents, keys)
    ):
      raise errors.CheckpointError(
        f'{lost} was lost, and there is no snapshot of all variables.'
      )
    with self.inventory.writes.left_out():
      for entry in entries:
        self._restore_entry(entry, snapshot)
    return snapshot

  def _fall_back(self) -> None:
    """Selects an earlier snapshot if the latest is damaged."""
    snapshot = self._store.find()
    if snapshot is not None:
      self._note_age(snapshot)
    self.note_writes()

  def _note_age(self, snapshot: snapshots.Snapshot) -> None:
    self._read_at = time.monotonic() - snapshot.age_secs

  def _check_values(self) -> None:
    if emptied := self.inventory.emptied():
      raise tf.errors.UnavailableError(
        None,
        None,
        f'{inventory.format_ps(emptied)} could not receive all values.',
      )

  def _restore_entry(
    self, entry: inventory.Entry, snapshot: snapshots.Snapshot
  ) -> None:
    snapshot.check(entry)
    read = functools.partial(self._store.read, snapshot)
    for piece in entry.pieces():
      if frozen_rows.is_stored(piece):
        parts = snapshot.reader.parts(piece.key)
        frozen_rows.restore(piece, parts, read)
      else:
        piece.variable.assign(read(piece))

  def _save(self, quiet: contextlib.AbstractContextManager[None]) -> None:
    with contextlib.ExitStack() as writing:
      with quiet:
        writing.enter_context(self._writing)
        draft = self._read()
        if draft is None:
          return
        for group in draft.values:
          writing.callback(group.drop)
      self._store.write(draft.entries, draft.values)
      self._covered = draft.covers
      self._read_at = draft.read_at

  def _read(self) -> _Draft | None:
    """Reads all variables; returns None if the last snapshot is up to date.

    It also is while the program still makes variables that begin with it: one
    without them would take its place, and their values would be lost.
    """
    if self._lacks_variables():
      return None
    covers = (
      len(self.inventory),
      self.gate.num_entries,
      self.inventory.writes.last,
    )
    others_write = self._is_shared or self.gate.num_inside
    if covers == self._covered and not others_write:
      return None
    entries = self.inventory.entries()
    values = self._reader.read(entries)
    return _Draft(covers, entries, values, time.monotonic())

  def _lacks_variables(self) -> bool:
    if self._are_all_made or self.begun_with is None:
      return False
    made = {entry.key for entry in self.inventory.entries()}
    return not made.issuperset(self.begun_with.contents)

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
