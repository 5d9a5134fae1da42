"""Traces the steps of an execution, and fuses their reads of variables.

All parameters that a step reads as a whole are pulled from each ps as one
tensor; so are rows of embeddings, after their indices were sent to the ps as
one tensor. Reads that cannot be moved without changing their result are left to
TensorFlow: reads after a write within the step, and reads in functions that the
step calls.

Steps may form rounds that pull once and push once each. Within a round the
worker reads and writes local copies of the variables.
"""

import collections
from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import functools
from typing import Any

import tensorflow as tf

from tfps._compat import reads as compat
from tfps._compat import write_counts
from tfps.variables import growing
from tfps.variables import placement_ledger
from tfps.variables import step_replicas
from tfps.wire import config
from tfps.wire import fused_transfer
from tfps.wire import local_copies as local_copies_lib
from tfps.wire import pull
from tfps.wire import rounds
from tfps.wire import sparse_rows as sparse_rows_lib
from tfps.wire import tables as tables_lib
from tfps.wire import traffic as traffic_lib


class HoistedError(Exception):
  """Raised if a loop writes to a variable that was read before: trace again."""


class Steps:
  """Unrolled steps that are traced into one function.

  Args:
    wire: the transfer options.
    workspace: the function's.
    num_steps: the number of steps; nothing is prefetched beyond them.
    unfused: keys of variables whose reads are left to TensorFlow; extended in
      place when a trace has to be repeated.
    policy: the update policy; by default each step makes an update. The steps
      of one update form a round; the last round may be shorter.
    sync_step: the synchronization of workers; None if they do not wait.
    may_repeat: whether the trace can be repeated. If not, reads in loops are
      left to TensorFlow, as the loop may write to the variable later.
    warned: names of variables that a warning was given for; extended in place.

  Attributes:
    round_length: number of steps of a round.
    round: the round whose steps are being traced.
  """

  def __init__(
    self,
    wire: config.Wire,
    workspace: traffic_lib.Workspace,
    num_steps: int,
    unfused: set[Any],
    *,
    policy: Any = None,
    sync_step: Any = None,
    may_repeat: bool = True,
    warned: set[str] | None = None,
  ) -> None:
    self.wire = wire
    self.sync_step = sync_step
    self.workspace = workspace
    self.policy = policy
    self.round_length = policy.steps_per_update if policy else 1
    self.round = rounds.Round(-1)
    self._graph = tf.compat.v1.get_default_graph()
    self._fused_transfers = fused_transfer.FusedTransfers(workspace)
    self._tables = tables_lib.Tables(
      self._fused_transfers, set() if warned is None else warned
    )
    self._puller = pull.Puller(wire, self._fused_transfers, sync_step)
    self._num_steps = num_steps
    self._unfused = unfused
    self._may_repeat = may_repeat
    self._step = -1
    self._values: dict[tuple[Any, int, str], tf.Tensor] = {}
    self._hoisted: list[tuple[Any, Any]] = []

  @contextlib.contextmanager
  def step(self) -> Iterator[None]:
    """Returns a context manager within which one step is to be traced.

    Raises:
      HoistedError: a loop wrote to a variable that it read; trace all steps
        again, with the same `unfused`.
    """
    self._step += 1
    if self._step % self.round_length == 0:
      self._begin_round()
    self.round.calls.clear()
    self.round.is_ending = (
      self._step + 1
    ) % self.round_length == 0 or self._step + 1 == self._num_steps
    with compat.reading(self):
      yield
    self._check_loops()
    if self.round.is_ending:
      self.write_back()
      if self._step + 1 == self._num_steps:
        self._tables.settle()
      self._fused_transfers.settle()

  def read(self, variable: Any, place: Any) -> tf.Tensor | None:
    """Returns the variable's value, if it is fused; see `_compat.reads`."""
    copy = self.round.copies.get(_key(variable))
    if copy is None and not self._is_fused(variable, place):
      return None
    if copy is None and write_counts.is_in_loop(place, self._graph):
      if not self._may_repeat:
        return None
      self._hoisted.append((variable, place))
    with self._in_graph(place), compat.stop_recording():
      value = self._value(variable) if copy is None else copy.value()
    compat.note_read(variable, value)
    return value

  def read_rows(
    self, variable: Any, indices: Any, place: Any
  ) -> tf.Tensor | None:
    """Returns rows of the variable, if they are fused; see `_compat.reads`."""
    copy = self.round.copies.get(_key(variable))
    self._tables.note_lookup(_key(variable))
    if copy is None and not self._is_fused(variable, place):
      return None
    if place is not self._graph:
      return None if copy is None else tf.gather(copy.value(), indices)
    indices = tf.convert_to_tensor(indices)
    if indices.dtype not in (tf.int32, tf.int64):
      return None
    read = functools.partial(self._noted_rows, variable, copy)
    if sparse_rows_lib.are_distinct(indices):
      return read(indices)
    return compat.read_distinct(read, indices, variable.shape[1:])

  def read_keyed(
    self,
    variable: Any,
    keys: tf.Tensor,
    read: Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]],
  ) -> tf.Tensor | None:
    """Returns the rows of keys, if they are fused; see `_compat.reads`."""
    key = _key(variable)
    if not self._is_fusable(variable) or not self.is_at_top_level():
      return None
    with compat.stop_recording():
      rows, names = self._puller.keyed_rows(
        variable, keys, read, self.round.index
      )
      if key in self.round.copies:
        rows = self.round.copies[key].rows(names, rows)
    compat.note_rows(
      variable,
      rows,
      lambda gradient: tf.IndexedSlices(tf.convert_to_tensor(gradient), names),
    )
    return rows

  def compute_on_ps(
    self, variable: Any, function: Callable[[Any], tf.Tensor]
  ) -> tf.Tensor | None:
    """Returns a function of a variable that its ps computes.

    The gradient stays on the ps, too.

    Args:
      variable: an unsharded variable, or one shard.
      function: computes a scalar from the variable's value.

    Returns:
      The scalar; None if the worker has the value, or gets it for less than
      the call costs, or steps read a copy of its own.
    """
    key = _key(variable)
    if self.round_length > 1 or not self._is_fused(variable, self._graph):
      return None
    if not self.is_at_top_level() or not self._tables.is_large(variable):
      return None
    if self._tables.is_read_whole(key):
      return None
    return self._puller.compute(variable, function)

  def note_on_ps(self, variable: Any, gradient: tf.Tensor) -> None:
    """Notes a dense gradient that a ps has, and that is to stay there."""
    self._tables.note_on_ps(variable, gradient)

  def is_only_looked_up(self, variable: Any) -> bool:
    """Returns whether the round reads nothing but rows of a variable."""
    return self._tables.is_only_looked_up(_key(variable))

  def note_shards(self, gradient: Any, parts: list[Any]) -> None:
    """Notes of which gradients of shards a gradient was joined."""
    self.round.shards[id(gradient)] = gradient, parts

  def read_tag(self, count: Any) -> tf.Tensor:
    """Returns a count as of when the parameters of its ps were read.

    Args:
      count: an int64 variable on that ps.

    Returns:
      A float32 scalar, pulled along with the parameters; see `pull.since_tag`.
    """
    with self._graph.as_default(), compat.stop_recording():
      for index in range(self.round.index, self._last_ahead + 1):
        key = ('tag', _key(count)), index, ''
        if key not in self._values:
          self._values[key] = self._puller.tag(count, (self._step, index))
      return self._values[('tag', _key(count)), self.round.index, '']

  def source(self, tensor: Any, device: str) -> tf.Tensor | None:
    """Returns a pulled tensor as the ps has it, if that may be used instead.

    Args:
      tensor: any tensor.
      device: the device of the ps.
    """
    return self._fused_transfers.source(tensor, device)

  def is_at_top_level(self) -> bool:
    """Returns whether the steps themselves are traced, not a branch or loop."""
    return tf.compat.v1.get_default_graph() is self._graph

  def write(self, variable: Any, value: Any, place: Any, *, sign: int) -> bool:
    """Writes to the worker's copy of a round; see `_compat.reads`."""
    if self.round_length == 1 or place is not self._graph:
      return False
    if not self._is_fused(variable, place):
      return False
    with compat.stop_recording():
      value = tf.convert_to_tensor(value, variable.dtype)
      if sign:
        self._copy_of(variable).add(value if sign > 0 else -value)
      else:
        self._copy_of(variable).assign(value)
    return True

  def change(self, variable: Any, change: Any) -> None:
    """Adds a tensor or `tf.IndexedSlices` to the worker's copy only.

    Raises:
      ValueError: steps read the variable itself, so that none would see it.
    """
    # Look-ups in a table count as writes, but change no value that is known.
    looks_up = growing.grows(variable) and self._is_fusable(variable)
    if not looks_up and not self._is_fused(variable, self._graph):
      raise ValueError(
        f'{self.policy}: {variable.name} cannot be changed on the worker only, '
        'as it is on no ps, or steps write to it in a branch or loop. Write to '
        'it outside of these, or use updates=Async().'
      )
    self._copy_of(variable).change(change)

  def _copy_of(self, variable: Any) -> local_copies_lib.Copy:
    copy = self.round.copies.get(_key(variable))
    if copy is None:
      copy = local_copies_lib.Copy(variable, lambda: self._value(variable))
      self.round.copies[_key(variable)] = copy
    return copy

  def write_back(self) -> None:
    """Writes the steps' assignments to the ps, and discards all copies.

    Raises:
      HoistedError: a branch or a loop has written to a copied variable.
    """
    written = collections.defaultdict(list)
    for copy in self.round.copies.values():
      variable = copy.variable
      if copy.is_local and growing.grows(variable):
        continue  # look-ups count as writes
      before = self.round.writes.get(id(variable.handle), 0)
      if write_counts.num_writes(variable, self._graph, self._graph) > before:
        # The order of the two writes is known to TensorFlow only.
        self._unfused.add(_key(variable))
        raise HoistedError
      if copy.is_assigned:
        written[variable.device].append((variable, copy.value(), False))
      elif (added := copy.added()) is not None:
        written[variable.device].append((variable, added, True))
    self.round.copies.clear()
    for group in written.values():
      self._write(group)

  def _write(self, group: list[tuple[Any, tf.Tensor, bool]]) -> None:
    route = pull.route(fused_transfer.PUSH, group[0][0])
    items = [fused_transfer.Item(value) for _, value, _ in group]
    arrived = fused_transfer.transfer(items, route, self.workspace)
    with route.destination:
      for (variable, _, is_added), value in zip(group, arrived, strict=True):
        compat.write(variable, value, is_added=is_added)

  def _begin_round(self) -> None:
    self.round = rounds.Round(self.round.index + 1)
    if self.wire.fuse:
      self.round.writes = write_counts.writes_by_handle(self._graph)

  def _is_fusable(self, variable: Any) -> bool:
    if not self.wire.fuse or not pull.is_numeric(variable):
      return False
    if compat.is_in_vectorized_loop() or _key(variable) in self._unfused:
      return False
    return _is_on_ps(variable.device) and not _is_on_ps(compat.current_device())

  def _is_fused(self, variable: Any, place: Any) -> bool:
    if not self._is_fusable(variable):
      return False
    before = self.round.writes.get(id(variable.handle), 0)
    return write_counts.num_writes(variable, place, self._graph) <= before

  def _value(self, variable: Any) -> tf.Tensor:
    """Returns the value that the current round uses."""
    last = self.round.index if pull.is_live(variable) else self._last_ahead
    key, worker = _key_of_worker(variable)
    # Values of prefetched rounds are read before this round's update.
    for index in range(self.round.index, last + 1):
      if (key, index, worker) not in self._values:
        value = self._puller.value(variable, (self._step, index))
        self._values[key, index, worker] = value
        self._tables.note_value(key, variable, value)
    return self._values[key, self.round.index, worker]

  @property
  def _last_round(self) -> int:
    return (self._num_steps - 1) // self.round_length

  @property
  def _last_ahead(self) -> int:
    return min(self.round.index + self.wire.prefetch, self._last_round)

  def _noted_rows(
    self, variable: Any, copy: local_copies_lib.Copy | None, distinct: tf.Tensor
  ) -> tf.Tensor:
    with compat.stop_recording():
      rows = self._rows(variable, distinct, copy)
    shape = compat.constant(tuple(variable.shape), distinct.dtype)
    compat.note_rows(
      variable,
      rows,
      lambda gradient: tf.IndexedSlices(
        tf.convert_to_tensor(gradient), distinct, shape
      ),
    )
    return rows

  def _rows(
    self, variable: Any, distinct: tf.Tensor, copy: local_copies_lib.Copy | None
  ) -> tf.Tensor:
    if copy is not None and copy.is_whole:
      return tf.gather(copy.value(), distinct)
    rows = self._puller.rows(variable, distinct, self.round.index)
    return rows if copy is None else copy.rows(distinct, rows)

  @contextlib.contextmanager
  def _in_graph(self, place: Any) -> Iterator[None]:
    if place is self._graph:
      yield
      return
    with self._graph.as_default(), tf.control_dependencies(None):
      yield

  def _check_loops(self) -> None:
    wrong = [
      variable
      for variable, place in self._hoisted
      if write_counts.is_written_within(variable, place, self._graph)
    ]
    self._hoisted.clear()
    if wrong:
      self._unfused.update(_key(variable) for variable in wrong)
      raise HoistedError


def _key(variable: Any) -> Any:
  """Returns a key that a variable and its wrappers share."""
  return variable.handle.ref()


def _key_of_worker(variable: Any) -> tuple[Any, str]:
  """Returns the keys of a variable and of the worker that reads it."""
  return _key(variable), step_replicas.worker_device()


def _is_on_ps(device: str) -> bool:
  return bool(device) and placement_ledger.ps_index(device) is not None
