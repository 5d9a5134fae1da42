"""Copies of a job's variables, in snapshots and replicas."""

from collections.abc import Callable
from collections.abc import Mapping

from absl import logging

from tfps import errors
from tfps.recovery import config
from tfps.recovery import consistency_note as consistency_note_lib
from tfps.recovery import inventory as inventory_lib
from tfps.recovery import replicas as replicas_lib
from tfps.recovery import saved_tables as saved_tables_lib
from tfps.recovery import snapshotter as snapshotter_lib
from tfps.server import fencing
from tfps.server import ps_addresses
from tfps.variables import shared_variables


class Copies:
  """Snapshots and replicas of variables on ps, from which lost ones get values.

  Args:
    recovery: settings.
    address_book: addresses of the ps.
    notes: consistency notes of the job.
    shared: creates the variables.
    device: CPU of this process.
    saves: whether this process saves and restores the variables: the chief.
    is_shared: as for `Snapshotter`.
    fence: against other processes of this task.

  Attributes:
    recovery: as given.
    address_book: as given.
    notes: as given.
    shared: as given.
    fence: as given.
    inventory: the variables.
    replicas: replicas of the variables.
    snapshotter: saves the variables; None if another process does.
    restores: whether variables begin with the values of the last snapshot,
      until `cover`.

  Raises:
    errors.CheckpointError: the directory cannot be used.
    ValueError: replicas are wanted and there is only one ps.
  """

  def __init__(
    self,
    recovery: config.Recovery,
    *,
    address_book: ps_addresses.PsAddressBook,
    notes: consistency_note_lib.ConsistencyNotes,
    shared: shared_variables.SharedVariables,
    device: str,
    saves: bool,
    is_shared: bool,
    fence: fencing.Fence,
  ) -> None:
    self.recovery = recovery
    self.address_book = address_book
    self.notes = notes
    self.shared = shared
    self.fence = fence
    num_ps = len(address_book.addresses)
    self.replicas = replicas_lib.Replicas(recovery, num_ps, device=device)
    self.inventory = inventory_lib.Inventory()
    self.snapshotter: snapshotter_lib.Snapshotter | None = None
    if saves:
      self.snapshotter = snapshotter_lib.Snapshotter(
        recovery,
        device=device,
        num_ps=num_ps,
        confirm=fence.check,
        is_shared=is_shared,
      )
      self.inventory = self.snapshotter.inventory
    self.restores = False

  @property
  def saved_tables(self) -> saved_tables_lib.SavedTables | None:
    """Tables of the snapshot with which variables begin; None if none do."""
    if self.snapshotter is None or not self.restores:
      return None
    return self.snapshotter.saved_tables

  def keep(self) -> None:
    """Saves the variables, if this process does, against a later loss.

    Failures to write are only logged.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    if self.snapshotter is None:
      return
    try:
      self.snapshotter.save()
    except errors.CheckpointError as error:
      logging.warning('The variables could not be saved: %s', error)
    self.replicas.refresh()

  def cover(self, incarnations: Callable[[], Mapping[int, int | None]]) -> None:
    """Saves the variables, if this process does, that have not been saved yet.

    From the first call on, the ps have all live variables of the job.

    Args:
      incarnations: returns those of the ps by index.

    Raises:
      errors.CheckpointError: they could not be saved.
      tf.errors.OpError: a ps is lost.
    """
    if self.snapshotter is None:
      return
    self.snapshotter.cover()
    self.replicas.cover()
    if self.restores:
      self.notes.write(incarnations())
      self.restores = False

  def fail_over(self, lost: set[int], lost_secs: float) -> bool:
    """Lets other ps take over those that were lost, if that is due.

    Args:
      lost: indices of the ps.
      lost_secs: for how long they have been lost.

    Returns:
      Whether the address of a ps has changed.
    """
    before = self.address_book.addresses.copy()
    self.address_book.fail_over_if_due(
      lost, lost_secs, self.recovery.waits_for_restart_secs
    )
    return self.address_book.addresses != before

  def renew(self, lost: set[int]) -> None:
    """Makes the variables of ps that were lost again, without their values.

    Args:
      lost: indices of the ps.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    self.replicas.renew(self.inventory.on(lost), lost)
    self.shared.rejoin()

  def restore(
    self,
    lost: set[int],
    found: Mapping[int, int | None],
    on_restored: Callable[[], object] = lambda: None,
  ) -> float | None:
    """Gives the variables of ps that were lost their values, and tells others.

    If replicas do not have all of them, all variables are set back.

    Args:
      lost: indices of the ps.
      found: incarnations of all ps by index.
      on_restored: called before others are told.

    Returns:
      How long ago the variables had these values, in seconds; None if that is
      not known.

    Raises:
      errors.CheckpointError: there is no snapshot of all variables.
      tf.errors.OpError: a ps is lost.
    """
    assert self.snapshotter is not None
    self.notes.announce(found)
    secs = self.snapshotter.restore(lost, self.replicas)
    self.shared.announce(self.inventory.on(set(found)))
    on_restored()
    self.notes.write(found)
    return secs
