"""Sums of the gradients of several workers, on the ps that will apply them.

Gradients come with the version of the parameters by which they were computed.
The first of a version begins a new sum, and more are added until the quorum is
there. Those of older versions, and those beyond the quorum, are dropped.

Gradients of whole variables are summed as one buffer for each ps and type.
Those of rows are kept side by side until their sum is taken.
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
from tfps.updates.sync import protocol_ops as protocol_ops_lib
from tfps.updates.sync import ps_state as ps_state_lib
from tfps.variables import placement_ledger
from tfps.wire import chunking
from tfps.wire import push

# More than any quorum: no more gradients are taken.
_CLOSED = np.int64(protocol_ops_lib.ALL)


@dataclasses.dataclass(frozen=True)
class Piece:
  """A gradient of an ordinary variable, or of one shard."""

  variable: Any
  gradient: Any


class GradientAggregator:
  """The sums of one point, in the function that is being traced.

  Args:
    state: has the tags.
    name: of the job, unique on the ps.
    point: the point's number.
    pieces: the gradients of this step.

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
    self._aggregator = {
      device: _OfDevice(
        state, name, point, device, [pieces[i] for i in indices]
      )
      for device, indices in by_device.items()
    }

  def add(
    self, pieces: Sequence[Piece], turn: protocol_ops_lib.StepTicket
  ) -> list[tf.Tensor]:
    """Sends gradients to the ps, which add them.

    Args:
      pieces: the gradients.
      turn: in which they were computed.

    Returns:
      Tensors, here, after which all are there.
    """
    added = [
      self._aggregator[device].add([pieces[i] for i in indices], turn)
      for device, indices in self._indices.items()
    ]
    return [tf.identity(count) for count in added]

  def take_means(self, version: tf.Tensor) -> list[Any]:
    """The means of a version's gradients, on the ps, as there were pieces."""
    found: dict[int, Any] = {}
    for device, indices in self._indices.items():
      means = self._aggregator[device].take_means(version)
      found.update(zip(indices, means, strict=True))
    return [found[i] for i in range(len(found))]


class _OfDevice:
  """The sums on one ps."""

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
        f'{pieces[0].variable.name} is at {device or "no device"}, and only '
        'gradients of variables on ps can be summed there.'
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
    # One handle a function: TensorFlow keeps in order what shares it.
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
    self, pieces: Sequence[Piece], turn: protocol_ops_lib.StepTicket
  ) -> tf.Tensor:
    gradients = [in_type_of(piece) for piece in pieces]
    names = {
      id(getattr(gradient, 'values', gradient)): push.name_of(piece.variable)
      for piece, gradient in zip(pieces, gradients, strict=True)
    }
    arrived = []
    for chunk in chunking.divide(gradients, lambda gradient: gradient):
      arrived += push.send(chunk, self._device, names)
    return self._locked(self._add, [turn, arrived])[0]

  def take_means(self, version: tf.Tensor) -> list[Any]:
    return self._locked(self._take, [version])

  def _add(
    self, turn: protocol_ops_lib.StepTicket, gradients: Sequence[Any]
  ) -> Any:
    """Adds one worker's gradients, unless they are late."""
    version, count = self._tag()
    begins = turn.version > version
    fits = tf.equal(turn.version, version) & (count < turn.quorum)
    parts = self._parts(gradients)
    count = tf.switch_case(
      tf.where(begins, 0, tf.where(fits, 1, 2)),
      [
        functools.partial(self._begin_sums, parts),
        functools.partial(self._add_to_sums, parts, count + 1),
        lambda: count,
      ],
    )
    version = tf.where(begins, turn.version, version)
    return [count], self._set_tag(version, count)

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
    count = count % _CLOSED  # where they are taken once more
    are_there = tf.debugging.Assert(
      tf.equal(found, version),
      [
        'The gradients of version',
        version,
        'are gone; there are those of',
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
    shape = tf.constant(self._shapes[i].as_list(), slices.indices.dtype)
    return tf.IndexedSlices(slices.values, slices.indices, shape)

  def _types_of_rows(self, i: int) -> list[tuple[list[int], tf.DType]]:
    row = self._shapes[i].as_list()[1:]
    return [([-1], tf.int64), ([-1, *row], self._dtypes[i])]

  def _num_elements(self, dtype: tf.DType) -> int:
    return sum(self._shapes[i].num_elements() for i in self._dense[dtype])

  def _tag(self) -> tuple[tf.Tensor, tf.Tensor]:
    tag = tf.raw_ops.ResourceGather(
      resource=self._tags.handle,
      indices=tf.constant(self._point),
      dtype=tf.int64,
    )
    version, count = tf.unstack(tag, num=2)
    return version, count

  def _set_tag(self, version: tf.Tensor, count: tf.Tensor) -> list[Any]:
    return [
      tf.raw_ops.ResourceScatterUpdate(
        resource=self._tags.handle,
        indices=tf.constant(self._point),
        updates=tf.stack([version, count]),
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
  """A gradient in the type of its variable, naming each row once."""
  dtype = piece.variable.dtype
  if not isinstance(piece.gradient, tf.IndexedSlices):
    return tf.cast(piece.gradient, dtype)
  slices = apply.with_distinct_rows(piece.gradient)
  return tf.IndexedSlices(tf.cast(slices.values, dtype), slices.indices)


def _digest(pieces: Sequence[Piece]) -> str:
  """Tells one step's gradients from those of another, in all workers alike."""
  facts = [
    (p.variable.name, p.variable.shape.as_list(), p.variable.dtype.name)
    for p in pieces
  ]
  return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
