"""Exclusive work on the variables of a ps.

Each device has one lock, which a step takes once for all of its variables
there. `tf.CriticalSection` refuses to enter a section twice in one
function, as several steps in one function do.
"""

import collections
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
import dataclasses
from typing import Any

import tensorflow as tf

from tfps._compat import locks as compat
from tfps._compat import replicated_writes

_NAME = 'tfps_updates'


@dataclasses.dataclass(frozen=True)
class Job:
  """Function to run under the lock of a variable's device.

  Attributes:
    variable: variable whose device runs it.
    fn: function of the inputs, copied to that device; captures no tensors and
      returns its last operations, which are None in eager mode.
    inputs: structures of tensors on any device.
  """

  variable: Any
  fn: Callable[..., Sequence[Any]]
  inputs: Sequence[Any] = ()


def run(jobs: Iterable[Job]) -> None:
  """Runs jobs, each under the lock of its device.

  A device takes its lock once all inputs have arrived, so that a slow, frozen
  or dead worker does not block the others.

  Args:
    jobs: jobs on any devices.
  """
  compat.let_devices_go_on()
  by_device = collections.defaultdict(list)
  for job in jobs:
    by_device[job.variable.device].append(job)
  for device, own in by_device.items():
    with tf.device(device):
      _run_on(device, own)


def _run_on(device: str, jobs: Sequence[Job]) -> None:
  inputs = _arrived(device, [list(job.inputs) for job in jobs])
  mutex = tf.raw_ops.MutexV2(shared_name=_NAME)
  # Orders the lock after the function's earlier operations on the variables,
  # which may have taken the lock themselves.
  before = [
    tf.raw_ops.VarIsInitializedOp(resource=job.variable.handle) for job in jobs
  ]
  with tf.control_dependencies([*_tensors(inputs), *before]):
    lock = tf.raw_ops.MutexLock(mutex=mutex)
  with tf.control_dependencies([lock]):
    last = [job.fn(*own) for job, own in zip(jobs, inputs, strict=True)]
  last = _tensors(last)
  last += _tensors(
    [replicated_writes.replica_write(operation) for operation in last]
  )
  with tf.control_dependencies(last):
    # The lock is held for as long as its tensor is needed.
    tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)


def _arrived(device: str, structure: Any) -> Any:
  """Returns a structure of tensors and numbers as tensors on a device."""
  arrived: dict[int, tf.Tensor] = {}
  in_graph = not tf.executing_eagerly()

  def move(value: Any) -> tf.Tensor:
    if in_graph and tf.is_tensor(value) and value.device == device:
      return value
    # All jobs have some values in common.
    if id(value) not in arrived:
      arrived[id(value)] = tf.identity(value)
    return arrived[id(value)]

  return tf.nest.map_structure(move, structure, expand_composites=True)


def _tensors(structure: Any) -> list[Any]:
  flat = tf.nest.flatten(structure, expand_composites=True)
  return [value for value in flat if value is not None]
