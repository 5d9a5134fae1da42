"""Interception of gathers from the values of variables.

`tf.gather` and what is built on it read rows of a `tf.Variable` where it is.
What has only its value, as everything does that gets a Keras variable, gathers
from the value instead. Here such a gather becomes a read of rows.

All of TensorFlow's gathers along an axis call `gen_array_ops.gather_v2`, all by
several indices `gather_nd`, by the module.
"""

import functools
from typing import Any
import weakref

import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.framework import tensor_util
from tensorflow.python.ops import gen_array_ops

# A whole variable of so many bytes costs less than a call for its rows.
FEW_BYTES = 1 << 15

# What only passes values on, so that it may as well pass on rows.
_PASSING = ('Identity', 'Cast')
_BY_ROW = (
  *_PASSING,
  *('Add', 'AddV2', 'ConcatV2', 'Mul', 'Neg', 'RealDiv', 'Sub'),
)
_GATHERS = (
  *('GatherNd', 'GatherV2'),
  *('SparseSegmentMean', 'SparseSegmentSqrtN', 'SparseSegmentSum'),
)


class _Read:
  """A read of a variable, noted at the tensor that has its value.

  Attributes:
    variable: that was read.
    num_writes: by graph that the read was made in, how many operations before
      it may write to the variable.
    is_gathered_from: whether there are gathers from it all the same.
  """

  def __init__(self, variable: Any) -> None:
    self.variable = variable
    self.num_writes: Any = weakref.WeakKeyDictionary()
    self.is_gathered_from = False


def note(value: tf.Tensor, variable: Any, num_writes: int) -> None:
  """Notes in the current graph that a tensor is the value of a variable.

  Args:
    value: a tensor of this graph or one around it.
    variable: has a method `sparse_read`.
    num_writes: how many operations up to here may write to it.
  """
  size = value.dtype.size * (value.shape.num_elements() or 0)
  if size <= FEW_BYTES:
    return
  read = getattr(value, '_tfps_read', None)
  if read is None:
    read = value._tfps_read = _Read(variable)
  read.num_writes[ops.get_default_graph()] = num_writes


def is_gathered_from(value: tf.Tensor) -> bool:
  """Returns whether gathers use a value, or what is computed from it alike.

  Only what keeps the rows apart counts as computed alike.
  """
  read = getattr(value, '_tfps_read', None)
  if read is not None and read.is_gathered_from:
    return True
  return any(
    consumer.type in _GATHERS
    or (consumer.type == 'StridedSlice' and _is_at_an_index(consumer))
    or (
      consumer.type in _BY_ROW and any(map(is_gathered_from, consumer.outputs))
    )
    for consumer in value.consumers()
  )


def _is_at_an_index(operation: tf.Operation) -> bool:
  """Returns whether a slice begins where a tensor says."""
  return tensor_util.constant_value(operation.inputs[1]) is None


def take_part(num_writes: Any) -> None:
  """Replaces gathers from values that are noted by reads of rows.

  Args:
    num_writes: returns how many operations up to here may write to a variable.
  """
  _take_gathers(num_writes)


@functools.cache
def _take_gathers(num_writes: Any) -> None:
  gather = gen_array_ops.gather_v2
  gather_nd = gen_array_ops.gather_nd

  @functools.wraps(gather)
  def gather_otherwise(
    params: Any,
    indices: Any,
    axis: Any,
    batch_dims: int = 0,
    name: str | None = None,
  ) -> Any:
    params = _tensor(params)
    read = _read_of(params)
    if read is None:
      return gather(params, indices, axis, batch_dims, name)
    is_by_row = not batch_dims and tensor_util.constant_value(axis) == 0
    if not is_by_row or not _is_current(read, num_writes):
      read.is_gathered_from = True
      return gather(params, indices, axis, batch_dims, name)
    rows = read.variable.sparse_read(_integers(indices))
    return tf.cast(rows, params.dtype, name=name)

  @functools.wraps(gather_nd)
  def gather_nd_otherwise(
    params: Any, indices: Any, *args: Any, **kwargs: Any
  ) -> Any:
    params = _tensor(params)
    read = _read_of(params)
    if read is None:
      return gather_nd(params, indices, *args, **kwargs)
    indices = _integers(indices)
    if not indices.shape[-1:].is_fully_defined() or indices.shape[-1] == 0:
      read.is_gathered_from = True
      return gather_nd(params, indices, *args, **kwargs)
    if not _is_current(read, num_writes):
      read.is_gathered_from = True
      return gather_nd(params, indices, *args, **kwargs)
    rows = read.variable.sparse_read(indices[..., 0])
    rows = tf.cast(rows, params.dtype)
    if indices.shape[-1] == 1:
      return rows
    rank = indices.shape.rank - 1
    return tf.gather_nd(rows, indices[..., 1:], batch_dims=rank)

  gen_array_ops.gather_v2 = gather_otherwise
  gen_array_ops.gather_nd = gather_nd_otherwise


def _tensor(params: Any) -> Any:
  """Returns a variable of Keras as a tensor; other arguments as they are."""
  if tf.executing_eagerly() or isinstance(params, tf.Tensor):
    return params
  return tf.convert_to_tensor(params) if tf.is_tensor(params) else params


def _read_of(params: Any) -> _Read | None:
  """Returns the read that a tensor is the result of, or None."""
  if not tf.is_symbolic_tensor(params):
    return None
  while True:
    read: _Read | None = getattr(params, '_tfps_read', None)
    if read is not None or params.op.type not in _PASSING:
      return read
    params = params.op.inputs[0]


def _is_current(read: _Read, num_writes: Any) -> bool:
  """Returns whether the variable, read here, has the value that was read.

  A read outside of a loop does not see what the loop writes.
  """
  graph = ops.get_default_graph()
  before = read.num_writes.get(graph)
  return before is not None and before == num_writes(read.variable)


def _integers(indices: Any) -> tf.Tensor:
  indices = tf.convert_to_tensor(indices)
  if indices.dtype in (tf.int32, tf.int64):
    return indices
  return tf.cast(indices, tf.int32)
