"""Warm start: values of a checkpoint for tables of another number of rows.

A checkpoint can only be restored to variables of the same shapes. When a
vocabulary has grown or changed, `warm_start` gives the rows that remain their
values, those of the optimizer included:

    tfps.checkpoints.warm_start(
      '/data/last_week',
      tf.train.Checkpoint(model=model, optimizer=model.optimizer),
      vocabularies=[
        tfps.checkpoints.Vocabulary(
          model.get_layer('items').embeddings, old='old.txt', new='new.txt'
        )
      ],
    )
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
import contextlib
import dataclasses
import os
from typing import Any

from absl import logging
import numpy as np
import tensorflow as tf

from tfps import errors
from tfps._compat import checkpoint_graph
from tfps._compat import tensor_bundle
from tfps.training import vocabularies as vocabularies_lib
from tfps.variables import row_writes

__all__ = ['Vocabulary', 'WarmStart', 'warm_start']

Vocabulary = vocabularies_lib.Vocabulary

_Counts = tuple[int, int, int]
_MARK = 'tfps/warm_start'


@dataclasses.dataclass(frozen=True)
class WarmStart:
  """Result of a warm start.

  Attributes:
    path: the checkpoint.
    restored: names of the variables that have the values of the checkpoint.
    rows: for each variable of which only some rows were in the checkpoint, or
      have moved, how many rows have their values from there, how many it has,
      and how many the checkpoint has.
    left_out: for each variable that the checkpoint has a value for, and that
      could not take it, the reason.
    missing: names of variables that the checkpoint has no value for.
    unused: keys of the checkpoint's other values.
    is_elsewhere: whether another process of this job has done it: the chief, or
      an earlier life of it. All other attributes are empty then.
  """

  path: str
  restored: tuple[str, ...] = ()
  rows: dict[str, _Counts] = dataclasses.field(default_factory=dict)
  left_out: dict[str, str] = dataclasses.field(default_factory=dict)
  missing: tuple[str, ...] = ()
  unused: tuple[str, ...] = ()
  is_elsewhere: bool = False

  def __str__(self) -> str:
    if self.is_elsewhere:
      return f'Warm start from {self.path}: done by another process.'
    lines = [f'Warm start from {self.path}: {len(self.restored)} variables.']
    for name, (kept, total, saved) in self.rows.items():
      lines.append(f'{name}: {kept} of {total} rows, of {saved} there.')
    for name, reason in self.left_out.items():
      lines.append(f'{name}: left out; {reason}.')
    for what, names in (
      ('Not in the checkpoint', self.missing),
      ('Unused values of the checkpoint', self.unused),
    ):
      if names:
        lines.append(f'{what}: {vocabularies_lib.some(names)}.')
    return '\n'.join(lines)


def warm_start(
  checkpoint: str | os.PathLike[str],
  root: Any,
  *,
  vocabularies: Iterable[Vocabulary] = (),
  timeout_secs: float | None = 600.0,
) -> WarmStart:
  """Gives variables their values in a checkpoint, as far as it has them.

  Variables are found by their places in `root`, as `tf.train.Checkpoint` does.
  Those of the checkpoint's shape are restored. If only the number of rows
  differs, row i is restored to row i. Rows of a table with a `Vocabulary`, and
  of its slots in a Keras optimizer, are restored by their tokens. All others
  keep their values.

  Values are read and sent in slices of some megabytes, so that tables may
  exceed the memory of this process. They may be in other shards than the
  checkpoint's. The checkpoint must be readable in this process.

  With `BetweenGraphStrategy` all workers make this call: the chief reads the
  checkpoint, the others wait. What is done again by a restarted chief that
  continues with the variables on the ps changes nothing.

  Args:
    checkpoint: path of a checkpoint, or a directory whose latest one is used.
    root: what was saved, or what would be restored: a `tf.train.Checkpoint`, a
      model or another trackable. Build models and optimizers before.
    vocabularies: those of tables whose rows have moved.
    timeout_secs: how long other workers wait for the chief; None for no limit.

  Returns:
    What was restored and what was not, which is also logged.

  Raises:
    errors.CheckpointError: the checkpoint cannot be read, or has no value for
      any variable.
    errors.DeadlineError: the chief has not come in time.
    ValueError: a vocabulary does not fit its table.
    tf.errors.OpError: a ps is lost, and there is no `Recovery`.
  """
  strategy = _strategy_of(root)
  path = os.fspath(checkpoint)
  if not getattr(strategy, 'is_chief', True):
    _wait_for_chief(strategy, path, timeout_secs)
    return WarmStart(path, is_elsewhere=True)
  mark = _mark(strategy)
  if mark is not None and int(mark.numpy()):
    result = WarmStart(path, is_elsewhere=True)
  else:
    plan = _Plan(_latest(path), root, vocabularies)
    result = _surviving(strategy, plan.run)
    if mark is not None:
      mark.assign(1)
    if getattr(strategy, 'guard', None) is not None:
      strategy.guard.keep_writes()
  if hasattr(strategy, 'wait_for_chief'):
    strategy.wait_for_chief(_MARK, timeout_secs)
  is_whole = not (result.left_out or result.missing or result.unused)
  (logging.info if is_whole else logging.warning)('%s', result)
  return result


class _Plan:
  """Variables that a checkpoint has values for, and how they take them.

  Args:
    path: the checkpoint.
    root: see `warm_start`.
    vocabularies: see `warm_start`.

  Raises:
    errors.CheckpointError, ValueError: see `warm_start`.
  """

  def __init__(
    self, path: str, root: Any, vocabularies: Iterable[Vocabulary]
  ) -> None:
    self._path = path
    with _reading(path):
      self._reader = tensor_bundle.Reader(path)
      self._matches = checkpoint_graph.match(path, root)
    if not self._matches.saved:
      raise errors.CheckpointError(
        f'{path} has no value for any variable of {root!r}. Give warm_start '
        'what was saved, or what restore would be called of, and build models '
        'and optimizers before.'
      )
    self._moves = dict(map(self._move, vocabularies))

  def run(self) -> WarmStart:
    """Gives all variables their values; may be called again.

    Raises:
      errors.CheckpointError: the checkpoint is damaged.
      tf.errors.OpError: a ps is lost.
    """
    restored, rows, left_out = [], {}, {}
    for saved in self._matches.saved:
      move, reason = self._move_of(saved), self._misfit(saved)
      is_same = self._shape(saved) == saved.variable.shape.as_list()
      if reason is not None:
        left_out[saved.name] = reason
      elif move is None and is_same:
        self._restore(saved)
        restored.append(saved.name)
      else:
        kept = self._restore_rows(saved, move)
        total = int(saved.variable.shape[0])
        rows[saved.name] = kept, total, self._shape(saved)[0]
    _check_values(self._matches.saved)
    return WarmStart(
      self._path,
      tuple(restored),
      rows,
      left_out,
      tuple(self._matches.missing),
      tuple(self._matches.unused),
    )

  def _shape(self, saved: checkpoint_graph.Saved) -> list[int]:
    return self._reader.shapes[saved.key]

  def _misfit(self, saved: checkpoint_graph.Saved) -> str | None:
    """Returns why a variable cannot take its value; None if it can."""
    shape, own = self._shape(saved), saved.variable.shape.as_list()
    dtype, own_dtype = self._reader.dtypes[saved.key], saved.variable.dtype
    if dtype != own_dtype:
      return f'{dtype.name} in the checkpoint, {own_dtype.name} here'
    has_rows = shape and own and dtype != tf.string
    if shape != own and (not has_rows or shape[1:] != own[1:]):
      return f'shape {shape} in the checkpoint, {own} here'
    return None

  def _restore(self, saved: checkpoint_graph.Saved) -> None:
    max_bytes = row_writes.SLICE_BYTES
    num_bytes = saved.variable.shape.num_elements() * saved.variable.dtype.size
    if num_bytes > max_bytes and saved.variable.dtype != tf.string:
      self._restore_rows(saved, None)
    else:
      with _reading(self._path):
        value = self._reader.get(saved.key)
      row_writes.assign(saved.variable, value)

  def _restore_rows(
    self, saved: checkpoint_graph.Saved, move: np.ndarray | None
  ) -> int:
    """Restores rows, and returns how many.

    Args:
      saved: the variable.
      move: for each row of the checkpoint its row here, or -1; None if rows
        have not moved.
    """
    writer = row_writes.RowWriter(saved.variable)
    num_rows = int(saved.variable.shape[0])
    kept = 0
    for first, values in self._slices(saved.key):
      if move is None:
        values = values[: max(0, num_rows - first)]
        writer.write(first, values)
      else:
        targets = move[first : first + len(values)]
        values = values[: len(targets)][targets >= 0]
        writer.scatter(targets[targets >= 0], values)
      kept += len(values)
    return kept

  def _slices(self, key: str) -> Iterator[tuple[int, Any]]:
    with _reading(self._path):
      yield from self._reader.slices(key, row_writes.SLICE_BYTES)

  def _move(self, vocabulary: Vocabulary) -> tuple[int, np.ndarray]:
    """Returns a table's identity and, for each old row, the new one or -1."""
    table = checkpoint_graph.variable_of(vocabulary.variable)
    saved = [s for s in self._matches.saved if s.variable is table]
    if not saved:
      raise ValueError(
        f'Vocabulary of {vocabulary.variable!r}: {self._path} has no value for '
        'it. Give a variable of what is restored.'
      )
    return id(table), vocabularies_lib.row_moves(
      vocabulary, saved[0].name, self._shape(saved[0]), table.shape.as_list()
    )

  def _move_of(self, saved: checkpoint_graph.Saved) -> np.ndarray | None:
    """Returns the moves of a variable's rows: its own, or its owner's."""
    if id(saved.variable) in self._moves:
      return self._moves[id(saved.variable)]
    owner = self._matches.slots.get(id(saved.variable))
    is_alike = owner is not None and saved.variable.shape[:1] == owner.shape[:1]
    return self._moves.get(id(owner)) if is_alike else None


def _latest(path: str) -> str:
  """Returns the path of a checkpoint, the latest one of a directory."""
  found: str | None = path
  if tf.io.gfile.isdir(path):
    found = tf.train.latest_checkpoint(path)
  if found is None or not tf.io.gfile.exists(f'{found}.index'):
    raise errors.CheckpointError(
      f'{path}: there is no checkpoint. Give the directory of checkpoints, or '
      'the path of one without ".index".'
    )
  return found


def _strategy_of(root: Any) -> Any:
  """Returns the strategy of ours that a variable of an object is of, or None.

  Raises:
    ValueError: the object is not trackable.
  """
  if not isinstance(root, tf.__internal__.tracking.Trackable):
    raise ValueError(
      f'warm_start: {root!r} is not trackable. Give a tf.train.Checkpoint, a '
      'model or a tf.Module.'
    )
  for found in tf.train.TrackableView(root).descendants():
    variable = checkpoint_graph.variable_of(found)
    if variable is not None and checkpoint_graph.is_ours(variable):
      return checkpoint_graph.strategy_of(variable)
  return None


def _wait_for_chief(
  strategy: Any, path: str, timeout_secs: float | None
) -> None:
  try:
    strategy.wait_for_chief(_MARK, timeout_secs)
  except errors.DeadlineError as error:
    raise errors.DeadlineError(
      f'Warm start from {path}: the chief has not done it within '
      f'{timeout_secs or 0:g} seconds (timeout_secs). It may have failed, '
      'which its log tells, or need more time.'
    ) from error


def _mark(strategy: Any) -> Any:
  """Returns the variable on ps:0 that says whether this was done, or None.

  Only variables that outlive this process need it.
  """
  if strategy is None or strategy.extended.shared is None:
    return None
  return strategy.extended.make_own(0, _MARK, tf.constant(0))


def _surviving(strategy: Any, run: Callable[[], WarmStart]) -> WarmStart:
  guard = getattr(strategy, 'guard', None)
  return run() if guard is None else guard.surviving(run)


def _check_values(saved: Iterable[checkpoint_graph.Saved]) -> None:
  """Raises an error if a ps was lost; see `Inventory.emptied`."""
  for each in saved:
    for shard in row_writes.shards_of(each.variable):
      if not shard.is_initialized():
        raise tf.errors.UnavailableError(
          None, None, f'{each.name} could not receive its value.'
        )


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
  try:
    yield
  # A LookupError tells that a file ends early.
  except (tf.errors.OpError, LookupError, ValueError) as error:
    raise errors.CheckpointError(
      f'{path} cannot be read: {errors.first_line(error)}. Copy it again from '
      'where it was written, or give another one.'
    ) from error
