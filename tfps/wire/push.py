"""Sends gradients, and what belongs to them, to a ps as one tensor."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfps._compat import reads as compat
from tfps.variables import placement_ledger
from tfps.wire import config
from tfps.wire import fused_transfer
from tfps.wire import step_transfers as step_transfers_lib


def send(structure: Any, device: str, names: Mapping[int, str]) -> Any:
  """The same on a device.

  Args:
    structure: of tensors, from anywhere, and of numbers. A tensor that is in it
      repeatedly is sent once.
    device: where they are needed. What is there already is not sent.
    names: of the gradients among the tensors, by the tensors' identities. The
      codec of the wire applies to these.
  """
  reader = compat.reader()
  steps = reader if isinstance(reader, step_transfers_lib.Steps) else None
  ps = placement_ledger.ps_index(device)
  # A variable that is on no ps needs no wire.
  wire = steps.wire if steps and ps is not None else config.Wire()
  flat = tf.nest.flatten(structure, expand_composites=True)
  items = {
    id(value): _item(value, names.get(id(value)), wire)
    for value in flat
    if tf.is_tensor(value) and not _is_at(value, device)
  }
  workspace = steps.workspace if steps and ps is not None else None
  route = fused_transfer.Route(fused_transfer.PUSH, device, ps or 0)
  together = [list(items.values())] if items else []
  if not wire.fuse:
    together = [[item] for item in items.values()]
  arrived = [
    tensor
    for group in together
    for tensor in fused_transfer.cross(group, route, workspace)
  ]
  by_id = dict(zip(items, arrived, strict=True))
  flat = [by_id.get(id(value), value) for value in flat]
  return tf.nest.pack_sequence_as(structure, flat, expand_composites=True)


def _is_at(value: tf.Tensor, device: str) -> bool:
  return not tf.executing_eagerly() and value.device == device


def name_of(variable: Any) -> str:
  """Tells a variable from all others of a program."""
  return compat.unique_id(variable)


def _item(
  value: tf.Tensor, name: str | None, wire: config.Wire
) -> fused_transfer.Item:
  codec = wire.push
  if name is None or codec is None or value.shape.rank == 0:
    return fused_transfer.Item(value)
  if None in value.shape.as_list() and not codec.for_rows:
    return fused_transfer.Item(value)
  return fused_transfer.Item(value, codec, name)
