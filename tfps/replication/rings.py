"""Adds up tensors of several processes by TensorFlow's collectives.

The eager context of a worker knows the ps and itself alone, and cannot take
part in collectives with others: told of them later, it loses sight of the ps.
So each process has one more server, which knows those of all others, and a
session on it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfps import server as server_lib

_JOB = 'ring'
_GROUP = 1


class Ring:
  """Processes that add up arrays, all in the same order.

  Args:
    addresses: of all, each with a port for itself.
    index: of this process.
    timeout_secs: how long to wait for the others.
  """

  def __init__(
    self, addresses: Sequence[str], index: int, *, timeout_secs: float
  ) -> None:
    self._number = len(addresses)
    self._index = index
    self._timeout_secs = timeout_secs
    config = server_lib.default_config(self._number)
    config.experimental.collective_group_leader = _device(0)
    config.device_filters.append(_device(index))
    self._config = config
    self._server = tf.distribute.Server(
      {_JOB: list(addresses)}, job_name=_JOB, task_index=index, config=config
    )
    self._sums: dict[tf.DType, Any] = {}

  def sum(self, value: tf.Tensor) -> tf.Tensor:
    """The sum of what all processes give, in a function or outside of one.

    Raises:
      tf.errors.OpError: somebody has not come, or is lost.
    """
    total = tf.numpy_function(
      lambda array: self.sum_of(array), [value], value.dtype, stateful=True
    )
    return tf.ensure_shape(total, value.shape)

  def sum_of(self, array: np.ndarray) -> np.ndarray:
    """Likewise, of arrays."""
    dtype = tf.as_dtype(array.dtype)
    if dtype not in self._sums:
      self._sums[dtype] = self._make(dtype)
    total: np.ndarray = self._sums[dtype](np.reshape(array, [-1]))
    return np.reshape(total, array.shape)

  def of_first(self, array: np.ndarray) -> np.ndarray:
    """What the first process gives, of arrays of the same shape and type."""
    return self.sum_of(array if self._index == 0 else np.zeros_like(array))

  def _make(self, dtype: tf.DType) -> Any:
    graph = tf.Graph()
    with graph.as_default(), tf.device(f'{_device(self._index)}/device:CPU:0'):
      given = tf.compat.v1.placeholder(dtype, [None])
      total = tf.raw_ops.CollectiveReduce(
        input=given,
        group_size=self._number,
        group_key=_GROUP,
        instance_key=dtype.as_datatype_enum,
        merge_op='Add',
        final_op='Id',
        subdiv_offsets=[0],
        communication_hint='ring',
        timeout_seconds=self._timeout_secs,
      )
    session = tf.compat.v1.Session(
      self._server.target, graph=graph, config=self._config
    )
    return session.make_callable(total, [given])


def is_cause(error: tf.errors.OpError) -> bool:
  """Whether an error comes of processes that have not met in a ring."""
  return 'Collective' in str(error)


def _device(index: int) -> str:
  return f'/job:{_JOB}/replica:0/task:{index}'
