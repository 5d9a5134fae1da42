"""Replicas of variables on a second ps, from which a lost ps is restored."""

import collections
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import functools
import threading
import time
from typing import Any

from absl import logging
import tensorflow as tf

from tfps import errors
from tfps._compat import error_sources
from tfps._compat import handles
from tfps._compat import replicated_writes as compat
from tfps._compat import side_executor
from tfps._utils import deadlines
from tfps._utils import threads
from tfps._utils import timeouts
from tfps.recovery import config
from tfps.recovery import inventory
from tfps.variables import placement_ledger

# Marks an error as one of a ps for the coordinator.
_FROM_PS = 'GRPC error information from remote target /job:ps'

Pair = tuple[Any, Any]


class Replicas:
  """Stores a replica of each variable and shard on the ps after its own.

  Either each write to a variable also goes to its replica, or replicas are
  copied periodically.

  Updates of several workers may reach a variable in one order and its replica
  in another, so that their values can differ by the effect of the order.

  Args:
    recovery: settings: whether there are replicas and how long to wait for the
      chief to make them.
    num_ps: number of ps.
    device: CPU of this process.

  Raises:
    ValueError: replicas are wanted and there is only one ps.
  """

  def __init__(
    self, recovery: config.Recovery, num_ps: int, *, device: str
  ) -> None:
    self._are_wanted = recovery.replicas > 0
    if self._are_wanted and num_ps < 2:
      raise ValueError(
        f'Recovery: replicas={recovery.replicas} with {num_ps} ps: '
        'replicas need a second ps. Add a ps, or set replicas=0.'
      )
    self._timeout_secs = recovery.timeout_secs
    self._num_ps = num_ps
    self._pairs: list[Pair] = []
    self._written = compat.ReplicatedWrites()
    self._copier = ReplicaCopier(device)
    # Held while replicas are copied or their memory is allocated again.
    self._copying = threading.Lock()
    # By ps, the `time.monotonic` as of which replicas have its variables; None
    # if not known. And how many variables the last copy had.
    self._read_at: dict[int, float | None] = {}
    self._num_copied = 0
    self._are_behind = False
    self._period: threads.Periodic | None = None
    if recovery.replicate_every_secs is not None:
      self._period = threads.Periodic(
        'tfps-replicas', recovery.replicate_every_secs, self._refresh_or_log
      )

  def pairs(self) -> list[Pair]:
    """Returns each variable or shard with its replica."""
    return list(self._pairs)

  def start(self) -> None:
    """Starts to copy periodically, if that is configured."""
    if self._period is not None:
      self._period.start()

  def stop(self) -> None:
    """Stops copying; stopping twice is harmless."""
    if self._period is not None:
      self._period.stop()

  def cover(self) -> None:
    """Copies, if that is configured and the last copy lacks a variable.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    if self._num_copied != len(self._pairs):
      self.refresh()

  def refresh(self) -> None:
    """Copies now, if periodic copies are configured.

    Raises:
      tf.errors.OpError: a ps is lost; on each ps, the replicas are either all
        old or all new.
    """
    if self._period is not None:
      self.copy()

  def add(self, entry: inventory.Entry, *, is_new: bool) -> None:
    """Creates the replicas of a variable and copies its value to them.

    Args:
      entry: the variable.
      is_new: whether values of existing replicas are overwritten.
    """
    self._add(entry, lambda replica: is_new or not replica.is_initialized())

  def attach(self, entry: inventory.Entry) -> None:
    """Connects to the replicas of a variable, which the chief creates.

    Args:
      entry: the variable.

    Raises:
      errors.DeadlineError: the chief has not created them in time.
    """
    if self._period is not None:
      return  # only the chief copies
    for replica in self._add(entry, lambda replica: False):
      deadline = deadlines.after(self._timeout_secs)
      while not replica.is_initialized():
        if deadlines.is_over(deadline):
          raise errors.DeadlineError(
            f'The chief has not created the replica of {entry.key} within '
            f'{self._timeout_secs:g} seconds. Check that it is alive and that '
            'it trains with replicas=1, too.'
          )
        time.sleep(timeouts.current().poll_secs)

  def renew(self, variables: Sequence[Any], ps: set[int]) -> None:
    """Allocates memory, without values, on ps that have restarted.

    Args:
      variables: variables and shards that were there, without replicas.
      ps: indices of the ps.

    Raises:
      errors.DeadlineError: a copy that is under way does not end.
      tf.errors.OpError: a ps is lost; nothing has changed.
    """
    with self._between_copies():
      replicas = [
        replica for _, replica in self._pairs if _ps_of(replica) in ps
      ]
      handles.renew([*variables, *replicas])
      self._written.update_handles()

  def have_all_of(self, ps: set[int]) -> bool:
    """Returns whether other ps have all variables of these ps."""
    return self._are_wanted and not any(
      (index + 1) % self._num_ps in ps for index in ps
    )

  def restore(self, ps: set[int]) -> float | None:
    """Restores variables and replicas on ps that have restarted.

    Args:
      ps: indices of the ps.

    Returns:
      How long ago the variables had these values, in seconds; None if that is
      not known.

    Raises:
      errors.DeadlineError: a copy that is under way does not end.
      tf.errors.OpError: a ps is lost.
    """
    with self._between_copies():
      secs = self._age(ps)
      for variable, replica in self._pairs:
        if _ps_of(variable) in ps:
          _copy(replica, variable)
        elif _ps_of(replica) in ps:
          _copy(variable, replica)
      for index in ps:
        self._note_copied({index, (index - 1) % self._num_ps}, time.monotonic())
    return secs

  def copy(self) -> None:
    """Copies all variables to their replicas.

    Raises:
      errors.DeadlineError: a copy that is under way does not end.
      tf.errors.OpError: a ps is lost; the others' variables were copied.
    """
    with self._between_copies():
      pairs, began = self.pairs(), time.monotonic()
      self._copier.copy(pairs, lambda ps: self._note_copied({ps}, began))
      self._num_copied = len(pairs)

  @contextlib.contextmanager
  def _between_copies(self) -> Iterator[None]:
    """Waits for a copy that is under way, and lets none begin."""
    secs = timeouts.current().cancel_secs
    if not self._copying.acquire(timeout=secs):
      raise errors.DeadlineError(
        f'A copy of variables to their replicas has not ended after {secs:g} '
        'seconds. Check whether a ps hangs.'
      )
    try:
      yield
    finally:
      self._copying.release()

  def _add(self, entry: inventory.Entry, is_empty: Any) -> list[Any]:
    replicas = []
    for piece in entry.pieces() if self._are_wanted else ():
      ps = (_ps_of(piece.variable) + 1) % self._num_ps
      replica = compat.make(piece.variable, placement_ledger.ps_device(ps))
      source = _ps_of(piece.variable)
      if is_empty(replica):
        _copy(piece.variable, replica)
        self._read_at.setdefault(source, time.monotonic())
      else:
        self._read_at[source] = None
      if self._period is None:
        self._written.add(piece.variable, replica)
      self._pairs.append((piece.variable, replica))
      replicas.append(replica)
    return replicas

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

  def _refresh_or_log(self) -> None:
    try:
      self.refresh()
      self._are_behind = False
    except (tf.errors.OpError, errors.DeadlineError) as error:
      if not self._are_behind:  # logged once until it succeeds
        logging.warning(
          'Replicas could not be copied and stay as they are: %s', error
        )
      self._are_behind = True


class ReplicaCopier:
  """Copies variables to their replicas, from ps to ps.

  A ps assigns the values from another ps once all have arrived: after a loss
  in the middle, its replicas all have their old values. Updates continue
  meanwhile: a value shares the memory of its variable until that changes.

  A copy is a background operation: after a loss it may never end, for a value
  that a lost ps had sent already may be asked of the one that was restarted.

  What goes from one ps to another is a call of its own. The parts of a call
  begin one after the other, and the runtime does not cancel one that is just
  beginning: with all ps in one call, it then waited forever for a value of a
  part that had not begun. Here what begins first sends, and waits for nothing.

  Args:
    device: CPU of this process.
  """

  def __init__(self, device: str) -> None:
    self._device = device
    self._functions: dict[int, Any] = {}
    self._num_pairs = 0

  def copy(
    self, pairs: Sequence[Pair], note_copied: Callable[[int], object]
  ) -> None:
    """Copies each variable to its replica.

    Args:
      pairs: variables and replicas; those of the last call, and maybe more.
      note_copied: called with the index of a ps once its variables were copied.

    Raises:
      tf.errors.OpError: a ps is lost; the others' variables were copied.
    """
    if len(pairs) != self._num_pairs:
      self._functions = _copying_functions(pairs)
      self._num_pairs = len(pairs)

    def copy_all_of(ps: int) -> None:
      self._call(self._functions[ps])
      note_copied(ps)

    threads.map_all(
      'tfps-copy', copy_all_of, self._functions, at_once=len(self._functions)
    )

  def _call(self, function: Any, *, may_retry: bool = True) -> None:
    try:
      with side_executor.run_aside(self._device):
        # Reading the result is the only way to learn that all is done.
        function().numpy()
    except tf.errors.CancelledError as error:
      # The runtime may not tell the cause; else a repair has cancelled it.
      raise tf.errors.UnavailableError(
        None, None, f'{_FROM_PS}: {error.message}'
      ) from error
    except tf.errors.InternalError as error:
      if not may_retry or not error_sources.is_garbled_request(error):
        raise
      self._call(function, may_retry=False)  # to copy twice changes nothing


def _copy(source: Any, target: Any) -> None:
  with tf.init_scope(), compat.suspended():
    target.assign(source.read_value())
    if not target.is_initialized():
      # TensorFlow reports the failure of a remote operation late or not at all.
      raise tf.errors.UnavailableError(
        None, None, f'ps:{_ps_of(target)} could not receive a value.'
      )


def _ps_of(variable: Any) -> int:
  ps = placement_ledger.ps_index(variable.device)
  assert ps is not None, variable
  return ps


def _copying_functions(pairs: Sequence[Pair]) -> dict[int, Any]:
  """Returns functions that each copy the variables of one ps, by its index."""
  by_ps = collections.defaultdict(list)
  for variable, replica in pairs:
    by_ps[_ps_of(variable)].append((variable, replica))
  # Without autograph, which is not safe while another thread traces.
  return {
    ps: tf.function(functools.partial(_copy_all, own), autograph=False)
    for ps, own in by_ps.items()
  }


def _copy_all(pairs: Sequence[Pair]) -> tf.Tensor:
  """Copies variables of one ps to their replicas, which are on another."""
  source, target = (each.device for each in pairs[0])
  with tf.device(source), tf.control_dependencies([_have_values(pairs)]):
    values = [variable.read_value() for variable, _ in pairs]
  with tf.device(target):
    values = tf.raw_ops.IdentityN(input=values)  # waits for all
    written = [
      replica.assign(value, read_value=False)
      for (_, replica), value in zip(pairs, values, strict=True)
    ]
    with tf.control_dependencies(written):
      return tf.constant(True)


def _have_values(pairs: Sequence[Pair]) -> tf.Operation:
  """Returns an op that fails unless all variables have values.

  `read_value` does not fail without one.
  """
  ready = [
    tf.raw_ops.VarIsInitializedOp(resource=variable.handle)
    for variable, _ in pairs
  ]
  return tf.raw_ops.Assert(
    condition=tf.reduce_all(tf.stack(ready)), data=['A variable has no value.']
  )
