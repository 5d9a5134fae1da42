"""Functions that run under the lock of a shard's ps, one call at a time."""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
from typing import Any

import tensorflow as tf

from tfps._compat import handles as handles_lib
from tfps._compat import replicated_writes
from tfps.updates import ps_lock
from tfps.updates.tables import resources
from tfps.updates.tables import shard as shard_lib

# Returns how many rows it has written.
Function = Callable[..., int]


def function(
  shard: shard_lib.Shard,
  body: Callable[..., Sequence[Any]],
  types: Sequence[tf.TensorSpec],
  **others: Any,
) -> Function:
  """Returns a function of arrays that runs a body under a shard's lock.

  Similar shards share its graph: to trace it takes longer than to run it.

  Args:
    shard: the shard.
    body: function of a shard and tensors, which depends on nothing else and
      returns the rows that it writes, if any, and then its operations.
    types: of the tensors.
    **others: more variables on the shard's device, which are among the values
      of the body's shard.

  Returns:
    The function, which has written when it returns.
  """
  own = dataclasses.replace(shard, values={**shard.values, **others})
  given, device = resources.handles(own.values), own.counts.device
  if replicated_writes.replica_of(own.rows) is None:
    kind = own.kind
    made = shard.share(
      (body, kind), lambda: _concrete(kind.bound, body, types, given)
    )
  else:  # of another device, replicas of these very variables are written, too
    given, device = [], None
    made = _concrete(lambda _: own, body, types, given)

  def call(*inputs: Any) -> int:
    with tf.device(device):
      tensors = [
        tf.constant(value, each.dtype)
        for value, each in zip(inputs, types, strict=True)
      ]
      # With its result a caller waits for the write, and gets its error.
      return int(made(*tensors, *given))

  return call


def _concrete(
  make_shard: Callable[[Sequence[tf.Tensor]], shard_lib.Shard],
  body: Callable[..., Sequence[Any]],
  types: Sequence[tf.TensorSpec],
  like: Sequence[tf.Tensor],
) -> Any:
  """Returns a function of tensors, and of handles as those that are given."""
  signature = [*types, *[tf.TensorSpec([], tf.resource)] * len(like)]

  # Without autograph, which is not safe while another thread traces.
  @tf.function(autograph=False, input_signature=signature)
  def run(*inputs: tf.Tensor) -> tf.Tensor:
    handles = inputs[len(types) :]
    for handle, other in zip(handles, like, strict=True):
      handles_lib.describe(handle, other)
    shard = make_shard(handles)
    found: list[Any] = []

    def job(*tensors: tf.Tensor) -> Sequence[Any]:
      rows, *operations = body(shard, *tensors)
      with resources.after(*operations):
        found.append(tf.size(rows))
      return found

    ps_lock.run([ps_lock.Job(shard.counts, job, inputs[: len(types)])])
    return found[0]

  return run.get_concrete_function()
