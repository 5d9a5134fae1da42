"""Slots of an optimizer that have a row for each of a table's."""

from collections.abc import Sequence
import functools
from typing import Any

import tensorflow as tf

from tfps._compat import handles as handles_lib
from tfps._compat import open_shapes
from tfps._compat import reads
from tfps._compat import replicated_writes
from tfps.updates.tables import rare_branch
from tfps.updates.tables import resources
from tfps.updates.tables import sharing
from tfps.updates.tables import storage
from tfps.variables import growing

_ATTRIBUTE = '_tfps_slot_growth'


def fit(rows: Any, slots: Sequence[Any]) -> list[tf.Tensor]:
  """Lets the slots of a variable that has grown have as many rows as it.

  Runs within a `ps_lock.Job` of the variable's device.

  Args:
    rows: the variable.
    slots: its slots; those whose rows are stored have them already.

  Returns:
    Tensors, after which they have.
  """
  slots = [slot for slot in slots if storage.of(slot) is None]
  if not (growing.grows(rows) and slots):
    return []
  shape = open_shapes.present(rows)
  needed = tf.unstack(shape, num=rows.shape.rank)[0]
  if any(replicated_writes.replica_of(slot) is not None for slot in slots):
    # It writes on two devices, so that it cannot be one operation.
    return [growing.fit(slot, needed, has_spare=False) for slot in slots]
  are_short = [open_shapes.num_rows(slot) < needed for slot in slots]
  grow = _branch(rows, slots)
  return [
    grow(
      functools.reduce(tf.logical_or, are_short),
      [slot.handle for slot in slots],
      shape,
      reads.constant((0,), tf.int64),
    )
  ]


def _branch(rows: Any, slots: Sequence[Any]) -> rare_branch.RareBranch:
  """Returns the branch in which slots grow, which those like them share."""
  kinds = resources.kinds({str(i): slot for i, slot in enumerate(slots)})

  def grow(handles: Sequence[tf.Tensor], shape: tf.Tensor) -> tf.Tensor:
    grown = [
      growing.fit(slot, shape[0], has_spare=False)
      for slot in resources.bound(kinds, handles).values()
    ]
    with tf.control_dependencies(grown):
      return tf.identity(shape)

  branch = sharing.get_or_make(
    sharing.in_use(),
    kinds,
    lambda: rare_branch.RareBranch(grow, [slot.handle for slot in slots]),
  )
  # It goes with the last variable that uses it.
  vars(handles_lib.inner(rows)).setdefault(_ATTRIBUTE, {})[kinds] = branch
  return branch
