"""Members: the workers whose gradients the next update waits for."""

from tfps.updates.sync import protocol_ops as protocol_ops_lib
from tfps.updates.sync import worker_table


class Members:
  """Changes which workers are members, from outside of their steps.

  Each method takes the number of a worker, and raises a `tf.errors.OpError` if
  a ps is lost.

  Args:
    ps: calls the operations on the synchronization state.
  """

  def __init__(self, ps: protocol_ops_lib.HostCalls) -> None:
    self._ps = ps

  def take_in(self, worker: int) -> None:
    """Includes a worker that is about to begin, even if it was done."""
    self._ps.call('take_in', worker)

  def leave_out(self, worker: int) -> None:
    """Excludes a lost worker until it is back."""
    self._ps.call('leave_out', worker, worker_table.ABSENT)

  def step_out(self, worker: int) -> None:
    """Excludes a worker until it executes something again.

    Once all workers have stepped out, the next one waits for all.
    """
    self._ps.call('leave_out', worker, worker_table.AWAY)

  def end(self, worker: int) -> None:
    """Excludes a worker that is done, until it begins again.

    Once all workers are done, the next one that begins waits for all.
    """
    self._ps.call('leave_out', worker, worker_table.DONE)

  def replace_leader(self, worker: int) -> None:
    """Lets another worker make the update that a restarted one was to make."""
    self._ps.call('leave_out', worker, worker_table.PRESENT)
