"""Reads variables on their ps and sends the values to a worker."""

from collections.abc import Iterator
import contextlib
from typing import Any

import tensorflow as tf

from tfps._compat import reads as compat
from tfps.variables import placement_ledger
from tfps.variables import step_replicas
from tfps.wire import config
from tfps.wire import fused_transfer

# A tag travels as a float32, which holds whole numbers below this exactly.
_TAGS = 1 << 20


class Puller:
  """Pulls what steps read, in transfers that steps share.

  Args:
    wire: how values travel.
    transfers: of the function that is being traced.
    sync_step: where workers wait for each other, if they do. Its `gate`, if it
      has one, are the operations after which variables may be read.
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
      variable: an ordinary one, or one shard.
      group: the step that pulls, and the round for which it does. Values of one
        group cross together.
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
      group: as for `value`, with whose values it crosses.
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
      variable: an ordinary one, or one shard.
      indices: of the rows, each of them once.
      round_index: of the steps that pull once together.
    """
    level = self._transfers.level(indices)
    there = self._transfers.promise(
      fused_transfer.Item(indices),
      route(fused_transfer.PUSH, variable),
      ('indices', round_index),
      level,
    )
    with self._reading_at(variable.device):
      rows = tf.raw_ops.ResourceGather(
        resource=variable.handle, indices=there, dtype=variable.dtype
      )
    codec = self._wire.pull
    if codec is not None and not codec.for_rows:
      codec = None
    return self._transfers.promise(
      fused_transfer.Item(rows, codec),
      route(fused_transfer.PULL, variable),
      ('rows', round_index),
      level if level is None else level + 1,
    )

  @contextlib.contextmanager
  def _reading_at(self, device: str) -> Iterator[None]:
    with (
      tf.device(device),
      tf.control_dependencies(getattr(self._sync_step, 'gate', [])),
      compat.stop_recording(),
    ):
      yield


def route(direction: int, variable: Any) -> fused_transfer.Route:
  """The way between a variable's ps and the worker that is being traced."""
  ps: Any = placement_ledger.ps_index(variable.device)
  worker = step_replicas.worker_device()
  return fused_transfer.Route(direction, variable.device, ps, worker)


def is_live(variable: Any) -> bool:
  """Whether a variable is a counter or a rate, which has to be up to date."""
  return not variable.dtype.is_floating or variable.shape.rank == 0


def since_tag(count: tf.Tensor, tag: tf.Tensor) -> tf.Tensor:
  """By how much a count has grown since it was pulled as a tag."""
  return (count - tf.cast(tag, tf.int64)) % _TAGS
