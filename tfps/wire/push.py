"""Pushes: gradients and associated tensors, sent to a ps as one tensor."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfps._compat import reads as compat
from tfps._compat import row_counts
from tfps.variables import placement_ledger
from tfps.wire import config
from tfps.wire import fused_transfer
from tfps.wire import step_transfers as step_transfers_lib


def send(structure: Any, device: str, names: Mapping[int, str]) -> Any:
  """Sends a structure of tensors to a device.

  Args:
    structure: nested structure of tensors and numbers. A tensor that occurs
      repeatedly is sent once.
    device: the destination. Tensors that are there already are not sent.
    names: the names of gradients, by `id` of their tensors. Only gradients are
      encoded by the wire's codec.

  Returns:
    The same structure, with its tensors on the device.
  """
  reader = compat.reader()
  steps = reader if isinstance(reader, step_transfers_lib.Steps) else None
  ps = placement_ledger.ps_index(device)
  wire = steps.wire if steps and ps is not None else config.Wire()
  _note_counts(structure)
  flat = tf.nest.flatten(structure, expand_composites=True)
  if steps is not None:
    flat = [
      value if (source := steps.source(value, device)) is None else source
      for value in flat
    ]
  items = {
    id(value): _item(value, names.get(id(value)), wire)
    for value in flat
    if tf.is_tensor(value) and not _is_at(value, device)
  }
  workspace = steps.workspace if steps and ps is not None else None
  route = fused_transfer.Route(fused_transfer.PUSH, device, ps or 0)
  groups = [list(items.values())] if items else []
  if not wire.fuse:
    groups = [[item] for item in items.values()]
  arrived = [
    tensor
    for group in groups
    for tensor in fused_transfer.transfer(group, route, workspace)
  ]
  by_id = dict(zip(items, arrived, strict=True))
  flat = [by_id.get(id(value), value) for value in flat]
  return tf.nest.pack_sequence_as(structure, flat, expand_composites=True)


def _note_counts(structure: Any) -> None:
  """Notes how many rows gradients have whose indices are of a known number."""
  for slices in tf.nest.flatten(structure):
    if isinstance(slices, tf.IndexedSlices):
      number = row_counts.of(slices.indices)
      if number is not None and row_counts.of(slices.values) is None:
        row_counts.note(slices.values, number)


def _is_at(value: tf.Tensor, device: str) -> bool:
  return not tf.executing_eagerly() and value.device == device


def name_of(variable: Any) -> str:
  """Returns a name of a variable that is unique within the program."""
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
