"""State of synchronized steps, in variables on one ps.

The protocol that changes it is described in `protocol`.
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfps.updates import apply
from tfps.updates import device_calls
from tfps.updates import ps_lock
from tfps.updates import rows as rows_lib
from tfps.updates.sync import worker_table

MAX_POINTS = 4

# Columns of `executions`: how many have ended, how many will have ended before
# more begin (negative if unknown), and whether updates are paused.
ENDED, LAST, PAUSED = range(3)


class Point(NamedTuple):
  """State of a point, at which gradients of all workers are added up.

  Attributes:
    version: version of the variables that the point updates; grows with each
      update and never decreases.
    goal: version at which there are no more updates.
    arrived: number of gradients for the next version that have arrived.
    leader: number of the worker that makes the next version plus 1, or 0.
    even: number of workers that wait at an even version.
    odd: number of workers that wait at an odd version.
    updates: number of updates.
    late: number of gradients that came too late for their update.
    short: number of updates made of fewer gradients than the policy wants.
    repeated: number of updates begun again because their leader was lost.
  """

  version: Any
  goal: Any
  arrived: Any
  leader: Any
  even: Any
  odd: Any
  updates: Any
  late: Any
  short: Any
  repeated: Any


class SyncState:
  """Variables on ps:0, all int64, which are changed under its lock.

  Methods are called under the lock unless they say otherwise.

  Args:
    make: makes a variable of a ps index, a name and a value.
    num_ps: number of ps.
    num_workers: number of workers that take part from the beginning.

  Attributes:
    points: a `Point` in each row.
    workers: what is known of each worker.
    executions: ENDED, LAST and PAUSED.
    tags: on each ps, for each point, the version whose gradients are added up,
      and how many have been.

  Raises:
    ValueError: too many workers.
  """

  def __init__(
    self,
    make: Callable[..., Any],
    *,
    num_ps: int,
    num_workers: int,
  ) -> None:
    zeros = tf.zeros([MAX_POINTS, len(Point._fields)], tf.int64)
    self.points = make(0, 'tfps/sync/points', zeros)
    self.workers = worker_table.WorkerTable(make, num_workers)
    none = tf.constant([0, -1, 0], tf.int64)
    self.executions = make(0, 'tfps/sync/executions', none)
    zeros = tf.zeros([MAX_POINTS, 2], tf.int64)
    self.tags = [make(i, f'tfps/sync/tags/{i}', zeros) for i in range(num_ps)]

  @property
  def device(self) -> str:
    """Device of all variables but the tags."""
    device: str = self.points.device
    return device

  def locked(self, function: Callable[..., Any], *args: Any) -> Any:
    """Runs a function under the lock of the state's ps.

    Args:
      function: returns tensors that it read and operations that wrote.
      *args: arguments of the function.

    Returns:
      The tensors; without a tuple if there is one.
    """
    found: list[Any] = []

    def job(*inputs: Any) -> Sequence[Any]:
      given = iter(inputs)
      read, written = function(
        *(next(given) if tf.is_tensor(arg) else arg for arg in args)
      )
      found.extend(read)
      return [*written, *read]

    tensors = [arg for arg in args if tf.is_tensor(arg)]
    ps_lock.run([ps_lock.Job(self.points, job, tensors)])
    return found[0] if len(found) == 1 else tuple(found)

  def function(
    self, function: Callable[..., Sequence[tf.Tensor]], *args: Any
  ) -> device_calls.DeviceFunction:
    """Returns a function on the state's ps; see `device_calls`."""
    return device_calls.DeviceFunction(self.points, function, *args)

  def read_points(self) -> list[Point]:
    """Returns all points, read by this process without the lock.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    return [Point(*row) for row in self.points.numpy().tolist()]

  def versions_awaited(self) -> list[int]:
    """Returns the versions of the points at which workers wait.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    return [row.version for row in self.read_points() if row.even or row.odd]

  def point(self, number: int) -> Point:
    """Returns the state of a point."""
    row = rows_lib.read(self.points, tf.constant(number))
    return Point(*tf.unstack(row, num=len(Point._fields)))

  def set_point(self, number: int, point: Point) -> list[tf.Operation]:
    """Writes the state of a point."""
    return [rows_lib.write(self.points, tf.constant(number), tf.stack(point))]

  def read_executions(self) -> list[tf.Tensor]:
    """Returns ENDED, LAST and PAUSED."""
    return list(tf.unstack(apply.read(self.executions), num=3))

  def set_executions(self, *values: tf.Tensor) -> list[tf.Operation]:
    """Writes ENDED, LAST and PAUSED."""
    return [apply.write(self.executions, tf.stack(values))]
