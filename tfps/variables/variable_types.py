"""Shape, dtype and initial value in the arguments of a variable creator.

See `tf.variable_creator_scope`.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import functools
import inspect
from typing import Any

import numpy as np
import tensorflow as tf

from tfps._compat import keras_variables
from tfps.variables import sharded

_BYTES_PER_STRING = 16  # as partitioners assume


def num_bytes(kwargs: Mapping[str, Any]) -> int:
  """Returns the size of the variable; 0 if it is unknown before creation.

  Args:
    kwargs: arguments of a variable creator.
  """
  known = with_type(kwargs)
  if known.get('shape') is None or known.get('dtype') is None:
    return 0
  return num_bytes_of(known['shape'], known['dtype'])


def num_bytes_of(shape: Any, dtype: Any) -> int:
  """Returns the size of a variable; 0 if its shape has unknown dimensions.

  Args:
    shape: anything that converts to `tf.TensorShape`.
    dtype: anything that converts to `tf.DType`.
  """
  dtype = tf.as_dtype(dtype)
  size = _BYTES_PER_STRING if dtype == tf.string else dtype.size
  return (tf.TensorShape(shape).num_elements() or 0) * size


def with_type(kwargs: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the arguments with shape and dtype, if these can be inferred.

  An initial value that is a function is traced, so that nothing is computed.

  Args:
    kwargs: arguments of a variable creator.
  """
  kwargs = dict(kwargs)
  shape, dtype = kwargs.get('shape'), kwargs.get('dtype')
  if shape is None:
    shape = keras_variables.shape_of(kwargs.get('initial_value'))
    kwargs |= {} if shape is None else {'shape': shape}
  if shape is None or dtype is None:
    value = _abstract(kwargs.get('initial_value'), dtype)
    if value is not None:
      kwargs['shape'] = value.shape if shape is None else shape
      kwargs['dtype'] = value.dtype if dtype is None else dtype
  return kwargs


def shard_bytes(
  kwargs: Mapping[str, Any], partitioner: Callable[..., Sequence[int]]
) -> list[int]:
  """Returns the size of each shard that a partitioner makes of a variable.

  Args:
    kwargs: arguments of a variable creator, with shape and dtype.
    partitioner: see `tfps.partitioners`.

  Returns:
    Bytes of each shard; empty if the variable is not sharded, or its type is
    unknown.
  """
  shape, dtype = tf.TensorShape(kwargs.get('shape')), kwargs.get('dtype')
  if not shape.rank or dtype is None or kwargs.get('initial_value') is None:
    return []
  parts = partitioner(shape=shape, dtype=dtype)
  num_shards = min(parts[0], shape[0]) if parts else 0
  # TensorFlow adds the remaining rows to the first shards, one each.
  rows = [(shape[0] + i) // num_shards for i in reversed(range(num_shards))]
  return [num_bytes_of([n, *shape[1:]], dtype) for n in rows]


def shard_initial_values(
  kwargs: Mapping[str, Any], like: sharded.ShardedVariable
) -> list[Callable[[], Any]]:
  """Returns initial values of the shards of a variable sharded like another.

  Args:
    kwargs: arguments of a variable creator.
    like: the other variable.
  """
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
    return _typed(initial_value, dtype)
  # A function's graph, unlike others, takes tensors of eager mode, such as the
  # path of a checkpoint that the value is to be restored from.
  with tf.__internal__.FuncGraph('initial_value').as_default():
    return _typed(initial_value(), dtype)


def _typed(value: Any, dtype: Any) -> Any:
  # An array would be copied, and a graph takes no tensor of eager mode.
  if isinstance(value, np.ndarray | tf.__internal__.EagerTensor):
    return tf.TensorSpec(value.shape, dtype or tf.as_dtype(value.dtype))
  return tf.convert_to_tensor(value, dtype=dtype)
