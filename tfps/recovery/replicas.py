"""Has each variable on one more ps, from where a lost one can have it again."""

from collections.abc import Sequence
import threading
import time
from typing import Any

from absl import logging
import tensorflow as tf

from tfps import errors
from tfps._compat import handles
from tfps._compat import replicated_writes as compat
from tfps._utils import deadlines
from tfps._utils import threads
from tfps._utils import timeouts
from tfps.recovery import config
from tfps.recovery import inventory
from tfps.recovery import replica_copy
from tfps.variables import placement_ledger


class Replicas:
  """A twin of each variable, and of each shard, on the ps after its own.

  What is written to a variable is written to its twin, too, or else twins are
  copies that are made now and then: snapshots.

  Updates of several workers may come to a variable in one order and to its twin
  in another, so that the two can differ by what their order makes of them.

  Args:
    recovery: whether there are any, and how long to wait for the chief's.
    num_ps: how many ps there are.

  Raises:
    ValueError: there is only one.
  """

  def __init__(self, recovery: config.Recovery, num_ps: int) -> None:
    self._are_wanted = recovery.replicas > 0
    if self._are_wanted and num_ps < 2:
      raise ValueError(
        f'Recovery: replicas={recovery.replicas} with {num_ps} ps, and a '
        'variable needs another one to be on. Add a ps, or set replicas=0.'
      )
    self._timeout_secs = recovery.timeout_secs
    self._num_ps = num_ps
    self._pairs: list[replica_copy.Pair] = []
    self._twins = compat.ReplicatedWrites()  # of which the runtime knows
    self._copier = replica_copy.ReplicaCopier()
    # Held while twins are copied, or new memory takes the place of some.
    self._copying = threading.Lock()
    # When a ps' variables were last as their twins are, by `time.monotonic`,
    # and how many variables that is about.
    self._read_at: dict[int, float | None] = {}
    self._num_copied = 0
    self._are_behind = False
    self._period: threads.Periodic | None = None
    if recovery.replicate_every_secs is not None:
      self._period = threads.Periodic(
        'tfps-snapshots', recovery.replicate_every_secs, self._refresh_or_say
      )

  def pairs(self) -> list[replica_copy.Pair]:
    """Each variable, or shard of one, with its twin."""
    return list(self._pairs)

  def start(self) -> None:
    """Makes snapshots from now on, if that is how twins are kept."""
    if self._period is not None:
      self._period.start()

  def stop(self) -> None:
    """Makes no more snapshots; twice is harmless."""
    if self._period is not None:
      self._period.stop()

  def cover(self) -> None:
    """Makes a snapshot if there is none with all variables.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    if self._num_copied != len(self._pairs):
      self.refresh()

  def refresh(self) -> None:
    """Makes a snapshot now, if that is how twins are kept.

    Raises:
      tf.errors.OpError: a ps is lost; its variables' twins, and those of all
        others, are either all as they were or all new.
    """
    if self._period is not None:
      self.copy()

  def add(self, entry: inventory.Entry, *, is_new: bool) -> None:
    """Makes the twins of a variable, which get its value."""
    self._add(entry, lambda twin: is_new or not twin.is_initialized())

  def attach(self, entry: inventory.Entry) -> None:
    """Finds the twins of a variable, which the chief makes.

    Raises:
      errors.DeadlineError: it has not, in time.
    """
    if self._period is not None:
      return  # no business of this process
    for twin in self._add(entry, lambda twin: False):
      deadline = deadlines.after(self._timeout_secs)
      while not twin.is_initialized():
        if deadlines.is_over(deadline):
          raise errors.DeadlineError(
            f'After {self._timeout_secs:g} seconds, the chief has not made the '
            f'replica of {entry.key}. Is it alive, and does it train with '
            'replicas=1, too?'
          )
        time.sleep(timeouts.current().poll_secs)

  def renew(self, variables: Sequence[Any], ps: set[int]) -> None:
    """Gives what was on ps that have restarted memory there, without a value.

    Args:
      variables: that were there, besides the twins.
      ps: their indices.

    Raises:
      tf.errors.OpError: a ps is lost; all are as they were.
    """
    with self._copying:
      twins = [twin for _, twin in self._pairs if _ps_of(twin) in ps]
      handles.renew([*variables, *twins])
      self._twins.note_handles()

  def have_all_of(self, ps: set[int]) -> bool:
    """Whether what was on these ps is on others, too."""
    return self._are_wanted and not any(
      (index + 1) % self._num_ps in ps for index in ps
    )

  def put_back(self, ps: set[int]) -> float | None:
    """Gives variables and twins on ps that have restarted their values.

    Returns:
      How long ago the variables had these values, in seconds; None where that
      is not known.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    with self._copying:
      secs = self._age(ps)
      for variable, twin in self._pairs:
        if _ps_of(variable) in ps:
          _copy(twin, variable)
        elif _ps_of(twin) in ps:
          _copy(variable, twin)
      for index in ps:
        self._note_copied({index, (index - 1) % self._num_ps}, time.monotonic())
    return secs

  def copy(self) -> None:
    """Gives all twins the values of their variables.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    with self._copying:
      pairs, began = self.pairs(), time.monotonic()
      self._copier.copy(pairs)
      self._note_copied(set(self._read_at), began)
      self._num_copied = len(pairs)

  def _add(self, entry: inventory.Entry, is_empty: Any) -> list[Any]:
    twins = []
    for piece in entry.pieces() if self._are_wanted else ():
      ps = (_ps_of(piece.variable) + 1) % self._num_ps
      twin = compat.make(piece.variable, placement_ledger.ps_device(ps))
      source = _ps_of(piece.variable)
      if is_empty(twin):
        _copy(piece.variable, twin)
        self._read_at.setdefault(source, time.monotonic())
      else:
        self._read_at[source] = None
      if self._period is None:
        self._twins.add(piece.variable, twin)
      self._pairs.append((piece.variable, twin))
      twins.append(twin)
    return twins

  def _age(self, ps: set[int]) -> float | None:
    if self._period is None:
      return 0.0
    read_at = [self._read_at[index] for index in ps if index in self._read_at]
    known = [at for at in read_at if at is not None]
    if len(known) < len(read_at):
      return None
    return time.monotonic() - min(known) if known else 0.0

  def _note_copied(self, ps: set[int], read_at: float) -> None:
    self._read_at.update((index, read_at) for index in ps & set(self._read_at))

  def _refresh_or_say(self) -> None:
    try:
      self.refresh()
      self._are_behind = False
    except tf.errors.OpError as error:
      if not self._are_behind:  # said once, until it succeeds
        logging.warning('The replicas stay as they are: %s', error)
      self._are_behind = True


def _copy(source: Any, target: Any) -> None:
  with tf.init_scope(), compat.apart():
    target.assign(source.read_value())
    if not target.is_initialized():
      # TensorFlow tells of a remote operation's failure late, or not at all.
      raise tf.errors.UnavailableError(
        None, None, f'ps:{_ps_of(target)} could not take a value.'
      )


def _ps_of(variable: Any) -> int:
  ps = placement_ledger.ps_index(variable.device)
  assert ps is not None, variable
  return ps
