"""Steps of an execution whose reads of variables cross together.

Parameters that a step reads as a whole are pulled from each ps as one tensor,
and so are rows of embeddings, for which their numbers go to the ps as one
before. Reads that cannot be moved without changing what they see are left to
TensorFlow: those after a write within the step, and those in functions that the
step calls.

Steps may form rounds, of which each pulls once and pushes once. Within a round
a worker goes on with copies of the variables, to which steps write, too.
"""

import collections
from collections.abc import Iterator
import contextlib
import dataclasses
from typing import Any

import tensorflow as tf

from tfps._compat import reads as compat
from tfps.variables import placement_ledger
from tfps.variables import step_replicas
from tfps.wire import config
from tfps.wire import fused_transfer
from tfps.wire import local_copies as local_copies_lib
from tfps.wire import pull
from tfps.wire import sparse_rows as sparse_rows_lib
from tfps.wire import workspace as workspace_lib

_NUMBERS = frozenset(
  dtype
  for dtype in (
    *(tf.bfloat16, tf.float16, tf.float32, tf.float64),
    *(tf.int8, tf.int16, tf.int32, tf.int64),
    *(tf.uint8, tf.uint16, tf.uint32, tf.uint64),
  )
)


class HoistedError(Exception):
  """A loop writes to what was read before it; the trace has to be repeated."""


@dataclasses.dataclass
class Round:
  """Steps in a row that pull once and push once.

  Attributes:
    index: its number within the function.
    is_ending: whether its last step is being traced.
    is_applying: whether what was gathered is being applied.
    gathered: gradients that wait for the end, for `updates.gathering`.
    calls: how often each optimizer has been called in this step.
    copies: what steps have done to variables, by their keys.
    rows: which rows of a variable were read, and the rows, by its key and the
      worker.
    writes: how many operations wrote to variables before it, by the identity of
      their handles.
    shards: of gradients that are divided already, by their identity.
  """

  index: int
  is_ending: bool = False
  is_applying: bool = False
  gathered: dict[Any, Any] = dataclasses.field(default_factory=dict)
  calls: Any = dataclasses.field(default_factory=collections.Counter)
  copies: dict[Any, local_copies_lib.Copy] = dataclasses.field(
    default_factory=dict
  )
  rows: Any = dataclasses.field(
    default_factory=lambda: collections.defaultdict(list)
  )
  writes: dict[int, int] = dataclasses.field(default_factory=dict)
  shards: dict[int, Any] = dataclasses.field(default_factory=dict)


class Steps:
  """Unrolled steps, being traced into one function.

  Args:
    wire: how values travel.
    workspace: of the function.
    num_steps: how many steps come; no more is prefetched.
    policy: when gradients become updates; by default after each step. Else the
      steps in between form a round, of which the last may be shorter.
    kept: keys of variables to leave to TensorFlow; more are added as they are
      found.
    sync_step: where workers wait for each other, if they do.
    may_repeat: whether the trace can be repeated. If not, reads in loops are
      left to TensorFlow: the loop may turn out to write later on.
  """

  def __init__(
    self,
    wire: config.Wire,
    workspace: workspace_lib.Workspace,
    num_steps: int,
    kept: set[Any],
    *,
    policy: Any = None,
    sync_step: Any = None,
    may_repeat: bool = True,
  ) -> None:
    self.wire = wire
    self.sync_step = sync_step
    self.workspace = workspace
    self.policy = policy
    self.round_length = policy.steps_per_update if policy else 1
    self.round = Round(-1)
    self._home = tf.compat.v1.get_default_graph()
    self._fused_transfers = fused_transfer.FusedTransfers(workspace)
    self._puller = pull.Puller(wire, self._fused_transfers, sync_step)
    self._num_steps = num_steps
    self._kept = kept
    self._may_repeat = may_repeat
    self._step = -1
    self._values: dict[tuple[Any, int, str], tf.Tensor] = {}
    self._hoisted: list[tuple[Any, Any]] = []

  @contextlib.contextmanager
  def step(self) -> Iterator[None]:
    """One step, to be traced within.

    Raises:
      HoistedError: a loop wrote to a variable that it read; all is to be traced
        again, with the same `kept`.
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
      self._fused_transfers.settle()

  def read(self, variable: Any, place: Any) -> tf.Tensor | None:
    """The variable's value; see `_compat.reads`."""
    copy = self.round.copies.get(_key(variable))
    if copy is None and not self._is_ours(variable, place):
      return None
    if copy is None and compat.is_in_loop(place, self._home):
      if not self._may_repeat:
        return None
      self._hoisted.append((variable, place))
    with self._at_home(place), compat.stop_recording():
      value = self._value(variable) if copy is None else copy.value()
    compat.note_read(variable, value)
    return value

  def read_rows(
    self, variable: Any, indices: Any, place: Any
  ) -> tf.Tensor | None:
    """Some of the variable's rows; see `_compat.reads`."""
    copy = self.round.copies.get(_key(variable))
    if copy is None and not self._is_ours(variable, place):
      return None
    if place is not self._home:
      return None if copy is None else tf.gather(copy.value(), indices)
    indices = tf.convert_to_tensor(indices)
    if indices.dtype not in (tf.int32, tf.int64):
      return None
    distinct, positions = sparse_rows_lib.distinct(indices)
    with compat.stop_recording():
      rows = self._rows(variable, distinct, copy)
      self.round.rows[_place(variable)].append((distinct, rows))
    shape = tf.constant(variable.shape.as_list(), distinct.dtype)
    compat.note_rows(
      variable,
      rows,
      lambda gradient: tf.IndexedSlices(
        tf.convert_to_tensor(gradient), distinct, shape
      ),
    )
    if positions is None:
      return rows
    full = tf.concat([tf.shape(indices), variable.shape[1:]], axis=0)
    rows = tf.reshape(tf.gather(rows, positions), full)
    return tf.ensure_shape(rows, indices.shape + variable.shape[1:])

  def read_tag(self, count: Any) -> tf.Tensor:
    """A count as it was when the parameters of its ps were read.

    Returns:
      A float32 scalar, which travels with them; see `pull.since_tag`.
    """
    with self._home.as_default(), compat.stop_recording():
      for index in range(self.round.index, self._last_ahead + 1):
        key = ('tag', _key(count)), index, ''
        if key not in self._values:
          self._values[key] = self._puller.tag(count, (self._step, index))
      return self._values[('tag', _key(count)), self.round.index, '']

  def is_home(self) -> bool:
    """Whether operations go into the steps themselves, and into no branch."""
    return tf.compat.v1.get_default_graph() is self._home

  def write(self, variable: Any, value: Any, place: Any, *, sign: int) -> bool:
    """Writes to the worker's copy until the round ends; see `_compat.reads`."""
    if self.round_length == 1 or place is not self._home:
      return False
    if not self._is_ours(variable, place):
      return False
    with compat.stop_recording():
      value = tf.convert_to_tensor(value, variable.dtype)
      if sign:
        self._copy_of(variable).add(value if sign > 0 else -value)
      else:
        self._copy_of(variable).assign(value)
    return True

  def change(self, variable: Any, change: Any) -> None:
    """Adds a tensor or `tf.IndexedSlices` to the worker's copy alone."""
    if self._is_ours(variable, self._home):
      self._copy_of(variable).change(change)

  def _copy_of(self, variable: Any) -> local_copies_lib.Copy:
    copy = self.round.copies.get(_key(variable))
    if copy is None:
      copy = local_copies_lib.Copy(variable, lambda: self._value(variable))
      self.round.copies[_key(variable)] = copy
    return copy

  def write_back(self) -> None:
    """Writes what steps have written; nobody goes on with copies."""
    written = collections.defaultdict(list)
    for copy in self.round.copies.values():
      variable = copy.variable
      before = self.round.writes.get(id(variable.handle), 0)
      if compat.num_writes(variable, self._home, self._home) > before:
        # A branch or a loop has written, too, and only TensorFlow knows when.
        self._kept.add(_key(variable))
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
    arrived = fused_transfer.cross(items, route, self.workspace)
    with route.destination:
      for (variable, _, is_added), value in zip(group, arrived, strict=True):
        compat.write(variable, value, is_added=is_added)

  def _begin_round(self) -> None:
    self.round = Round(self.round.index + 1)
    if self.wire.fuse:
      self.round.writes = compat.writes_by_handle(self._home)

  def _is_ours(self, variable: Any, place: Any) -> bool:
    if not self.wire.fuse or variable.dtype not in _NUMBERS:
      return False
    if _key(variable) in self._kept:
      return False
    if not _is_on_ps(variable.device) or _is_on_ps(compat.current_device()):
      return False
    before = self.round.writes.get(id(variable.handle), 0)
    return compat.num_writes(variable, place, self._home) <= before

  def _value(self, variable: Any) -> tf.Tensor:
    """What the round is to see."""
    last = self.round.index if pull.is_live(variable) else self._last_ahead
    key, worker = _place(variable)
    # Those of later rounds are read here, before this one's update.
    for index in range(self.round.index, last + 1):
      if (key, index, worker) not in self._values:
        self._values[key, index, worker] = self._puller.value(
          variable, (self._step, index)
        )
    return self._values[key, self.round.index, worker]

  @property
  def _last_round(self) -> int:
    return (self._num_steps - 1) // self.round_length

  @property
  def _last_ahead(self) -> int:
    return min(self.round.index + self.wire.prefetch, self._last_round)

  def _rows(
    self, variable: Any, distinct: tf.Tensor, copy: local_copies_lib.Copy | None
  ) -> tf.Tensor:
    if copy is not None and copy.is_whole:
      return tf.gather(copy.value(), distinct)
    rows = self._puller.rows(variable, distinct, self.round.index)
    return rows if copy is None else copy.rows(distinct, rows)

  @contextlib.contextmanager
  def _at_home(self, place: Any) -> Iterator[None]:
    if place is self._home:
      yield
      return
    with self._home.as_default(), tf.control_dependencies(None):
      yield

  def _check_loops(self) -> None:
    wrong = [
      variable
      for variable, place in self._hoisted
      if compat.is_written_within(variable, place, self._home)
    ]
    self._hoisted.clear()
    if wrong:
      self._kept.update(_key(variable) for variable in wrong)
      raise HoistedError


def _key(variable: Any) -> Any:
  """The same for a variable and for what a strategy wraps it in."""
  return variable.handle.ref()


def _place(variable: Any) -> tuple[Any, str]:
  """A variable, and the worker that reads it."""
  return _key(variable), step_replicas.worker_device()


def _is_on_ps(device: str) -> bool:
  return bool(device) and placement_ledger.ps_index(device) is not None
