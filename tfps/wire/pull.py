"""Pulls: reads of variables on their ps, with the values sent to a worker."""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
from typing import Any

import tensorflow as tf

from tfps._compat import reads as compat
from tfps._compat import row_counts
from tfps.variables import placement_ledger
from tfps.variables import step_replicas
from tfps.wire import config
from tfps.wire import fused_transfer
from tfps.wire import sparse_rows as sparse_rows_lib

_NUMBERS = frozenset(
  dtype
  for dtype in (
    *(tf.bfloat16, tf.float16, tf.float32, tf.float64),
    *(tf.int8, tf.int16, tf.int32, tf.int64),
    *(tf.uint8, tf.uint16, tf.uint32, tf.uint64),
  )
)
# A tag travels as a float32, which represents integers below 2^24 exactly.
_TAGS = 1 << 20


class Puller:
  """Pulls values that steps read, in fused transfers.

  Args:
    wire: the transfer options.
    transfers: the fused transfers of the function that is traced.
    sync_step: the step's synchronization, or None. Variables are read after the
      operations in its `gate`, if it has any.
  """

  def __init__(
    self,
    wire: config.Wire,
    transfers: fused_transfer.FusedTransfers,
    sync_step: Any,
  ) -> None:
    self._wire = wire
    self._transfers = transfers
    self._sync_step = sync_step

  def value(self, variable: Any, group: tuple[int, int]) -> tf.Tensor:
    """Pulls a variable as a whole.

    Args:
      variable: an unsharded variable, or one shard.
      group: the step that pulls, and the round that uses the value. Values of
        one group are transferred together.
    """
    with self._reading_at(variable.device):
      value = tf.raw_ops.ReadVariableOp(
        resource=variable.handle, dtype=variable.dtype
      )
    codec = None if is_live(variable) else self._wire.pull
    kind = 'live' if is_live(variable) and self._wire.prefetch else 'dense'
    return self._transfers.promise(
      fused_transfer.Item(value, codec),
      route(fused_transfer.PULL, variable),
      (kind, *group),
    )

  def tag(self, count: Any, group: tuple[int, int]) -> tf.Tensor:
    """Pulls a count, modulo a power of two, as a float32 scalar.

    Args:
      count: an int64 variable.
      group: as for `value`; the tag is transferred with the group's values.
    """
    with self._reading_at(count.device):
      value = tf.raw_ops.ReadVariableOp(resource=count.handle, dtype=tf.int64)
      value = tf.cast(value % _TAGS, tf.float32)
    return self._transfers.promise(
      fused_transfer.Item(value),
      route(fused_transfer.PULL, count),
      ('dense', *group),
    )

  def rows(
    self, variable: Any, indices: tf.Tensor, round_index: int
  ) -> tf.Tensor:
    """Sends the indices of rows to their ps, and pulls the rows.

    Args:
      variable: an unsharded variable, or one shard.
      indices: distinct row numbers, of shape [n].
      round_index: index of the round; see `rounds.Round`.
    """
    level = self._transfers.level(indices)
    indices_on_ps = self._transfers.promise(
      fused_transfer.Item(indices),
      route(fused_transfer.PUSH, variable),
      ('indices', round_index),
      level,
    )
    with self._reading_at(variable.device):
      rows = tf.raw_ops.ResourceGather(
        resource=variable.handle, indices=indices_on_ps, dtype=variable.dtype
      )
    self._transfers.note_source(indices, indices_on_ps)
    number = row_counts.of(indices)
    return self._transfers.promise(
      fused_transfer.Item(rows, self._codec_of_rows(), num_rows=number),
      route(fused_transfer.PULL, variable),
      ('rows', round_index),
      level if level is None else level + 1,
    )

  def keyed_rows(
    self,
    variable: Any,
    keys: tf.Tensor,
    read: Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]],
    round_index: int,
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Sends keys to their ps, and pulls the rows that the ps finds for them.

    Args:
      variable: has the rows.
      keys: different keys, of shape [n].
      read: returns the rows of keys, and what updates name them by, on the ps.
      round_index: index of the round; see `rounds.Round`.

    Returns:
      The rows, and what updates name them by, of shape [n].
    """
    level = self._transfers.level(keys)
    keys_on_ps = self._transfers.promise(
      fused_transfer.Item(keys),
      route(fused_transfer.PUSH, variable),
      ('indices', round_index),
      level,
    )
    with self._reading_at(variable.device):
      rows, names = read(keys_on_ps)
    group = ('rows', round_index)
    level = level if level is None else level + 1
    number = row_counts.of(keys)
    pulled = self._transfers.promise(
      fused_transfer.Item(rows, self._codec_of_rows(), num_rows=number),
      route(fused_transfer.PULL, variable),
      group,
      level,
    )
    names = self._transfers.promise(
      fused_transfer.Item(names, num_rows=number),
      route(fused_transfer.PULL, variable),
      group,
      level,
      may_stay=True,
    )
    if number is not None:
      row_counts.note(names, number)
    return pulled, sparse_rows_lib.noted_distinct(names)

  def compute(
    self, variable: Any, function: Callable[[Any], tf.Tensor]
  ) -> tf.Tensor:
    """Computes a function of a variable, and its gradient, on the ps.

    Args:
      variable: an unsharded variable, or one shard.
      function: computes a scalar from the variable's value.

    Returns:
      The scalar, on the worker. Its gradient by the variable is on the ps.
    """
    with self._reading_at(variable.device):
      value = tf.raw_ops.ReadVariableOp(
        resource=variable.handle, dtype=variable.dtype
      )
      result = function(value)

    def gradient_of(gradient: tf.Tensor) -> tf.Tensor | None:
      with tf.device(variable.device), compat.stop_recording():
        (found,) = tf.gradients(result, value, gradient)
        return found

    with compat.stop_recording():
      pulled = tf.identity(result)
    compat.note_function(variable, pulled, gradient_of)
    return pulled

  def _codec_of_rows(self) -> Any:
    codec = self._wire.pull
    return codec if codec is not None and codec.for_rows else None

  @contextlib.contextmanager
  def _reading_at(self, device: str) -> Iterator[None]:
    with (
      tf.device(device),
      # What it waited for where it is used might wait for what travels with it.
      tf.control_dependencies(None),
      tf.control_dependencies(getattr(self._sync_step, 'gate', [])),
      compat.stop_recording(),
    ):
      yield


def route(direction: int, variable: Any) -> fused_transfer.Route:
  """Returns the route between a variable's ps and the worker being traced.

  Args:
    direction: `fused_transfer.PULL` or `fused_transfer.PUSH`.
    variable: a variable on a ps.
  """
  ps: Any = placement_ledger.ps_index(variable.device)
  worker = step_replicas.worker_device()
  return fused_transfer.Route(direction, variable.device, ps, worker)


def is_live(variable: Any) -> bool:
  """Returns whether a variable is a counter or a rate.

  Such variables are neither encoded nor prefetched.
  """
  return not variable.dtype.is_floating or variable.shape.rank == 0


def is_numeric(variable: Any) -> bool:
  """Returns whether a variable has numbers, which can be packed."""
  return variable.dtype in _NUMBERS


def since_tag(count: tf.Tensor, tag: tf.Tensor) -> tf.Tensor:
  """Returns how much a count has grown since it was pulled as a tag.

  Args:
    count: int64 scalar, the current count.
    tag: float32 scalar; see `Puller.tag`.
  """
  return (count - tf.cast(tag, tf.int64)) % _TAGS
