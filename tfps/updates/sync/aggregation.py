"""Sums of the gradients of several workers, on the ps that apply them.

Gradients arrive with the version of the parameters with which they were
computed. The first of a version begins a new sum; more are added until the
quorum is complete. Gradients of older versions, and beyond the quorum, are
dropped.

Dense gradients are added up in one buffer for each ps and type. Sparse ones are
stored side by side until their sum is taken.
"""

import collections
from collections.abc import Sequence
import dataclasses
import functools
import hashlib
from typing import Any

import numpy as np
import tensorflow as tf

from tfps._compat import shared_variables
from tfps.updates import apply
from tfps.updates import ps_lock
from tfps.updates import rows as rows_lib
from tfps.updates.sync import protocol_ops as protocol_ops_lib
from tfps.updates.sync import ps_state as ps_state_lib
from tfps.variables import placement_ledger
from tfps.wire import chunking
from tfps.wire import push

# More than any quorum: no more gradients are added.
_CLOSED = np.int64(protocol_ops_lib.ALL)


@dataclasses.dataclass(frozen=True)
class Piece:
  """Gradient of a variable or of one shard."""

  variable: Any
  gradient: Any


class GradientAggregator:
  """Sums of one point's gradients, in a function that is being traced.

  Args:
    state: synchronization state on the ps.
    name: name of the job; unique on the ps.
    point: number of the point.
    pieces: gradients of this step.

  Raises:
    ValueError: a variable is on no ps.
  """

  def __init__(
    self,
    state: ps_state_lib.SyncState,
    name: str,
    point: int,
    pieces: Sequence[Piece],
  ) -> None:
    by_device: dict[str, list[int]] = collections.defaultdict(list)
    for i, piece in enumerate(pieces):
      by_device[piece.variable.device].append(i)
    self._indices = by_device
    self._sums = {
      device: _DeviceSums(
        state, name, point, device, [pieces[i] for i in indices]
      )
      for device, indices in by_device.items()
    }

  def add(
    self, pieces: Sequence[Piece], ticket: protocol_ops_lib.StepTicket
  ) -> tf.Tensor:
    """Sends gradients to the ps, which add them up.

    Args:
      pieces: gradients of one step, in the order of the first.
      ticket: ticket with which they were computed.

    Returns:
      Whether all ps have added them, on this device; False if any has dropped
      them.
    """
    added = [
      self._sums[device].add([pieces[i] for i in indices], ticket)
      for device, indices in self._indices.items()
    ]
    return tf.reduce_all([tf.identity(is_added) for is_added in added])

  def take_means(self, version: tf.Tensor) -> list[Any]:
    """Returns the means of a version's gradients, on the ps, one per piece."""
    found: dict[int, Any] = {}
    for device, indices in self._indices.items():
      means = self._sums[device].take_means(version)
      found.update(zip(indices, means, strict=True))
    return [found[i] for i in range(len(found))]


class _DeviceSums:
  """Sums on one ps."""

  def __init__(
    self,
    state: ps_state_lib.SyncState,
    name: str,
    point: int,
    device: str,
    pieces: Sequence[Piece],
  ) -> None:
    ps = placement_ledger.ps_index(device)
    if ps is None:
      raise ValueError(
        f'Sync: {pieces[0].variable.name} is on {device or "no device"}, but '
        "only variables on a ps can be updated. Create it in the strategy's "
        'scope.'
      )
    self._device = device
    self._tags = state.tags[ps]
    self._point = point
    self._dense: dict[tf.DType, list[int]] = collections.defaultdict(list)
    self._rows: list[int] = []
    for i, piece in enumerate(pieces):
      if isinstance(piece.gradient, tf.IndexedSlices):
        self._rows.append(i)
      else:
        self._dense[piece.variable.dtype].append(i)
    self._shapes = [piece.variable.shape for piece in pieces]
    self._dtypes = [piece.variable.dtype for piece in pieces]
    name = f'tfps_sums/{name}/{point}/{ps}/{_digest(pieces)}'
    # One handle per function: TensorFlow orders operations that share it.
    with tf.device(device):
      self._buffers = {
        dtype: shared_variables.handle(
          f'{name}/{dtype.name}', shape=[self._num_elements(dtype)], dtype=dtype
        )
        for dtype in self._dense
      }
      self._lists = [
        tuple(
          shared_variables.handle(
            f'{name}/{i}/{part}', shape=[], dtype=tf.variant
          )
          for part in ('indices', 'values')
        )
        for i in self._rows
      ]

  def add(
    self, pieces: Sequence[Piece], ticket: protocol_ops_lib.StepTicket
  ) -> tf.Tensor:
    gradients = [in_type_of(piece) for piece in pieces]
    names = {
      id(getattr(gradient, 'values', gradient)): push.name_of(piece.variable)
      for piece, gradient in zip(pieces, gradients, strict=True)
    }
    arrived = []
    for chunk in chunking.divide(gradients, lambda gradient: gradient):
      arrived += push.send(chunk, self._device, names)
    return self._locked(self._add, [ticket, arrived])[0]

  def take_means(self, version: tf.Tensor) -> list[Any]:
    return self._locked(self._take, [version])

  def _add(
    self, ticket: protocol_ops_lib.StepTicket, gradients: Sequence[Any]
  ) -> Any:
    """Adds one worker's gradients, unless they are late."""
    version, count = self._tag()
    begins = ticket.version > version
    fits = tf.equal(ticket.version, version) & (count < ticket.quorum)
    parts = self._parts(gradients)
    count = tf.switch_case(
      tf.where(begins, 0, tf.where(fits, 1, 2)),
      [
        functools.partial(self._begin_sums, parts),
        functools.partial(self._add_to_sums, parts, count + 1),
        lambda: count,
      ],
    )
    version = tf.where(begins, ticket.version, version)
    return [begins | fits], self._set_tag(version, count)

  def _parts(self, gradients: Sequence[Any]) -> Any:
    dense = {
      dtype: tf.concat([tf.reshape(gradients[i], [-1]) for i in indices], 0)
      for dtype, indices in self._dense.items()
    }
    return dense, [gradients[i] for i in self._rows]

  def _begin_sums(self, parts: Any) -> tf.Tensor:
    dense, rows = parts
    for dtype, flat in dense.items():
      tf.raw_ops.AssignVariableOp(resource=self._buffers[dtype], value=flat)
    for i, slices, lists in zip(self._rows, rows, self._lists, strict=True):
      empty = [
        tf.raw_ops.EmptyTensorList(
          element_shape=shape, max_num_elements=-1, element_dtype=dtype
        )
        for shape, dtype in self._types_of_rows(i)
      ]
      _push(lists, empty, slices)
    return tf.constant(1, tf.int64)

  def _add_to_sums(self, parts: Any, count: tf.Tensor) -> tf.Tensor:
    dense, rows = parts
    for dtype, flat in dense.items():
      tf.raw_ops.AssignAddVariableOp(resource=self._buffers[dtype], value=flat)
    for slices, lists in zip(rows, self._lists, strict=True):
      _push(lists, [_read_list(handle) for handle in lists], slices)
    return tf.identity(count)

  def _take(self, version: tf.Tensor) -> Any:
    found, count = self._tag()
    count = count % _CLOSED  # if another leader took them before
    are_there = tf.debugging.Assert(
      tf.equal(found, version),
      [
        'Gradients of version',
        version,
        'were replaced by those of version',
        found,
      ],
    )
    means: dict[int, Any] = {}
    with tf.control_dependencies([are_there]):
      for dtype, indices in self._dense.items():
        flat = tf.raw_ops.ReadVariableOp(
          resource=self._buffers[dtype], dtype=dtype
        )
        means.update(self._split(flat / tf.cast(count, dtype), indices))
      for i, lists in zip(self._rows, self._lists, strict=True):
        means[i] = self._mean_of_rows(i, lists, count)
      closed = self._set_tag(found, count + _CLOSED)
    return [means[i] for i in range(len(self._shapes))], closed

  def _split(self, flat: tf.Tensor, indices: Sequence[int]) -> dict[int, Any]:
    sizes = [self._shapes[i].num_elements() for i in indices]
    return {
      i: tf.reshape(part, self._shapes[i])
      for i, part in zip(indices, tf.split(flat, sizes), strict=True)
    }

  def _mean_of_rows(self, i: int, lists: Any, count: tf.Tensor) -> Any:
    indices, values = (
      tf.raw_ops.TensorListConcatV2(
        input_handle=_read_list(handle),
        element_dtype=dtype,
        element_shape=shape,
        leading_dims=tf.constant([], tf.int64),
      ).tensor
      for handle, (shape, dtype) in zip(
        lists, self._types_of_rows(i), strict=True
      )
    )
    slices = apply.with_distinct_rows(
      tf.IndexedSlices(values / tf.cast(count, values.dtype), indices)
    )
    if not self._shapes[i].is_fully_defined():
      return slices
    shape = tf.constant(self._shapes[i].as_list(), slices.indices.dtype)
    return tf.IndexedSlices(slices.values, slices.indices, shape)

  def _types_of_rows(self, i: int) -> list[tuple[list[int], tf.DType]]:
    row = self._shapes[i].as_list()[1:]
    return [([-1], tf.int64), ([-1, *row], self._dtypes[i])]

  def _num_elements(self, dtype: tf.DType) -> int:
    return sum(self._shapes[i].num_elements() for i in self._dense[dtype])

  def _tag(self) -> tuple[tf.Tensor, tf.Tensor]:
    tag = rows_lib.read(self._tags, tf.constant(self._point))
    version, count = tf.unstack(tag, num=2)
    return version, count

  def _set_tag(self, version: tf.Tensor, count: tf.Tensor) -> list[Any]:
    return [
      rows_lib.write(
        self._tags, tf.constant(self._point), tf.stack([version, count])
      )
    ]

  def _locked(self, function: Any, inputs: Sequence[Any]) -> Any:
    found: list[Any] = []

    def job(*given: Any) -> Sequence[Any]:
      read, written = function(*given)
      found.extend(read)
      return [*written, *tf.nest.flatten(read, expand_composites=True)]

    ps_lock.run([ps_lock.Job(self._tags, job, inputs)])
    return found


def _push(lists: Any, before: Sequence[tf.Tensor], slices: Any) -> None:
  added = (tf.cast(slices.indices, tf.int64), slices.values)
  for handle, there, tensor in zip(lists, before, added, strict=True):
    pushed = tf.raw_ops.TensorListPushBack(input_handle=there, tensor=tensor)
    tf.raw_ops.AssignVariableOp(resource=handle, value=pushed)


def _read_list(handle: tf.Tensor) -> tf.Tensor:
  return tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.variant)


def in_type_of(piece: Piece) -> Any:
  """Returns a gradient in its variable's type, with each row once."""
  dtype = piece.variable.dtype
  if not isinstance(piece.gradient, tf.IndexedSlices):
    return tf.cast(piece.gradient, dtype)
  slices = apply.with_distinct_rows(piece.gradient)
  return tf.IndexedSlices(tf.cast(slices.values, dtype), slices.indices)


def _digest(pieces: Sequence[Piece]) -> str:
  """Identifies the variables of a step's gradients, equally in all workers."""
  facts = [
    (p.variable.name, p.variable.shape.as_list(), p.variable.dtype.name)
    for p in pieces
  ]
  return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
