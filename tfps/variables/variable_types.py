"""Shape, dtype and initial value of a variable that is about to be made.

They are in the arguments of a variable creator; see
`tf.variable_creator_scope`.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import functools
import inspect
from typing import Any

import tensorflow as tf

from tfps.variables import sharded

_BYTES_PER_STRING = 16  # as partitioners assume


def num_bytes(kwargs: Mapping[str, Any]) -> int:
  """The size of the variable; 0 if it cannot be known beforehand."""
  known = with_type(kwargs)
  if known.get('shape') is None or known.get('dtype') is None:
    return 0
  return num_bytes_of(known['shape'], known['dtype'])


def num_bytes_of(shape: Any, dtype: Any) -> int:
  """The size of a variable; 0 if its shape has unknown dimensions."""
  dtype = tf.as_dtype(dtype)
  size = _BYTES_PER_STRING if dtype == tf.string else dtype.size
  return (tf.TensorShape(shape).num_elements() or 0) * size


def with_type(kwargs: Mapping[str, Any]) -> dict[str, Any]:
  """The arguments with shape and dtype, where they can be known.

  An initial value that is a function is traced, not called, so that no value is
  computed here.
  """
  kwargs = dict(kwargs)
  shape, dtype = kwargs.get('shape'), kwargs.get('dtype')
  if shape is None or dtype is None:
    value = _abstract(kwargs.get('initial_value'), dtype)
    if value is not None:
      kwargs['shape'] = value.shape if shape is None else shape
      kwargs['dtype'] = value.dtype if dtype is None else dtype
  return kwargs


def shard_bytes(
  kwargs: Mapping[str, Any], partitioner: Callable[..., Sequence[int]]
) -> list[int]:
  """The size of each shard of a variable that a partitioner would cut.

  Args:
    kwargs: the arguments, with shape and dtype.
    partitioner: as in `tfps.partitioners`.

  Returns:
    None at all if it will not be cut, or if that cannot be known.
  """
  shape, dtype = tf.TensorShape(kwargs.get('shape')), kwargs.get('dtype')
  if not shape.rank or dtype is None or kwargs.get('initial_value') is None:
    return []
  cuts = partitioner(shape=shape, dtype=dtype)
  num_shards = min(cuts[0], shape[0]) if cuts else 0
  # TensorFlow gives what is over to the first shards, one row each.
  rows = [(shape[0] + i) // num_shards for i in reversed(range(num_shards))]
  return [num_bytes_of([n, *shape[1:]], dtype) for n in rows]


def shard_initial_values(
  kwargs: Mapping[str, Any], like: sharded.ShardedVariable
) -> list[Callable[[], Any]]:
  """The initial value of each shard of a variable that is cut like another."""
  return [
    functools.partial(_part, kwargs['initial_value'], like, i)
    for i in range(len(like.variables))
  ]


def _part(value: Any, whole: sharded.ShardedVariable, index: int) -> Any:
  if callable(value):
    parameters = inspect.signature(value).parameters
    if 'partition_shape' in parameters:
      shard = whole.variables[index]
      return value(partition_shape=tuple(shard.shape))
    value = value()
  return whole.split(value)[index]


def _abstract(initial_value: Any, dtype: Any) -> Any:
  if initial_value is None:
    return None
  if not callable(initial_value):
    return tf.convert_to_tensor(initial_value, dtype=dtype)
  with tf.Graph().as_default():
    return tf.convert_to_tensor(initial_value(), dtype=dtype)
