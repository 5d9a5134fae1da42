"""Steps of an execution whose reads of variables cross together.

Parameters that a step reads as a whole are pulled from each ps as one tensor,
and so are rows of embeddings, for which their numbers go to the ps as one
before. Reads that cannot be moved without changing what they see are left to
TensorFlow: those after a write within the step, and those in functions that the
step calls.
"""

from collections.abc import Iterator
import contextlib
from typing import Any

import tensorflow as tf

from tfps import _ledger
from tfps._compat import reads as compat
from tfps.wire import config
from tfps.wire import crossings
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


class Steps:
  """Unrolled steps, being traced into one function.

  Args:
    wire: how values travel.
    workspace: of the function.
    num_steps: how many steps come; no more is prefetched.
    kept: references to variables to leave to TensorFlow; more are added as they
      are found.
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
    may_repeat: bool = True,
  ) -> None:
    self.wire = wire
    self.workspace = workspace
    self._home = tf.compat.v1.get_default_graph()
    self._crossings = crossings.Crossings(workspace)
    self._num_steps = num_steps
    self._kept = kept
    self._may_repeat = may_repeat
    self._step = -1
    self._values: dict[tuple[Any, int], tf.Tensor] = {}
    self._writes: dict[int, int] = {}
    self._hoisted: list[tuple[Any, Any]] = []

  @contextlib.contextmanager
  def step(self) -> Iterator[None]:
    """One step, to be traced within.

    Raises:
      HoistedError: a loop wrote to a variable that it read; all is to be traced
        again, with the same `kept`.
    """
    self._step += 1
    if self.wire.fuse:
      self._writes = compat.writes_by_handle(self._home)
    with compat.reading(self):
      yield
    self._check_loops()
    self._crossings.settle()

  def read(self, variable: Any, place: Any) -> tf.Tensor | None:
    """The variable's value; see `_compat.reads`."""
    if not self._is_ours(variable, place):
      return None
    if compat.is_in_loop(place, self._home):
      if not self._may_repeat:
        return None
      self._hoisted.append((variable, place))
    with self._at_home(place):
      value = self._value(variable)
    compat.note_read(variable, value)
    return value

  def read_rows(
    self, variable: Any, indices: Any, place: Any
  ) -> tf.Tensor | None:
    """Some of the variable's rows; see `_compat.reads`."""
    is_here = place is self._home
    if not is_here or not self._is_ours(variable, place):
      return None
    indices = tf.convert_to_tensor(indices)
    if indices.dtype not in (tf.int32, tf.int64):
      return None
    distinct, positions = _distinct(indices)
    with compat.stop_recording():
      rows = self._rows(variable, distinct)
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

  def _is_ours(self, variable: Any, place: Any) -> bool:
    if not self.wire.fuse or variable.dtype not in _NUMBERS:
      return False
    if variable.ref() in self._kept:
      return False
    if self._ps(variable) is None or _is_on_ps(compat.current_device()):
      return False
    before = self._writes.get(id(variable.handle), 0)
    return compat.num_writes(variable, place, self._home) <= before

  def _value(self, variable: Any) -> tf.Tensor:
    """What the step is to see."""
    ahead = 0 if _is_live(variable) else self.wire.prefetch
    last = min(self._step + ahead, self._num_steps - 1)
    # Those of later steps are read here, before this one's update.
    for step in range(self._step, last + 1):
      if (variable.ref(), step) not in self._values:
        self._values[variable.ref(), step] = self._pull(variable, step)
    return self._values[variable.ref(), self._step]

  def _pull(self, variable: Any, step: int) -> tf.Tensor:
    with tf.device(variable.device), compat.stop_recording():
      value = tf.raw_ops.ReadVariableOp(
        resource=variable.handle, dtype=variable.dtype
      )
    codec = None if _is_live(variable) else self.wire.pull
    group = 'live' if _is_live(variable) and self.wire.prefetch else 'dense'
    return self._crossings.promise(
      crossings.Item(value, codec),
      self._route(crossings.PULL, variable),
      (group, self._step, step),
    )

  def _rows(self, variable: Any, distinct: tf.Tensor) -> tf.Tensor:
    level = self._crossings.level(distinct)
    there = self._crossings.promise(
      crossings.Item(distinct),
      self._route(crossings.PUSH, variable),
      ('indices', self._step),
      level,
    )
    with tf.device(variable.device):
      rows = tf.raw_ops.ResourceGather(
        resource=variable.handle, indices=there, dtype=variable.dtype
      )
    return self._crossings.promise(
      crossings.Item(rows, _for_rows(self.wire.pull)),
      self._route(crossings.PULL, variable),
      ('rows', self._step),
      level if level is None else level + 1,
    )

  def _route(self, direction: int, variable: Any) -> crossings.Route:
    return crossings.Route(direction, variable.device, self._ps(variable))

  def _ps(self, variable: Any) -> Any:
    return _ledger.ps_index(variable.device)

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
      self._kept.update(variable.ref() for variable in wrong)
      raise HoistedError


def _distinct(indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | None]:
  """Each index once, and where to find each; None if they are so already."""
  if indices.op.type in ('Unique', 'UniqueV2'):
    return indices, None
  return tf.unique(tf.reshape(indices, [-1]))


def _for_rows(codec: Any) -> Any:
  return codec if codec is not None and codec.for_rows else None


def _is_live(variable: Any) -> bool:
  """Whether it is a counter or a rate, which has to be up to date."""
  return not variable.dtype.is_floating or variable.shape.rank == 0


def _is_on_ps(device: str) -> bool:
  return bool(device) and _ledger.ps_index(device) is not None
