"""What a worker is at that takes batches for as long as there are any.

How many executions that makes is not known before. Others wait for the worker
as long as it has batches; where it finds none, it steps out, and it is back in
with its next execution.
"""

from collections.abc import Iterator
import contextlib

import tensorflow as tf

from tfps.updates.sync import presences
from tfps.updates.sync import session as session_lib
from tfps.updates.sync import turnouts


class QueueParticipation:
  """Takes part in meetings while a worker is at it.

  Args:
    sync_session: where workers wait for each other.

  Attributes:
    num_steps: of the execution that is about to be begun.
  """

  comes_and_goes = True

  def __init__(self, sync_session: session_lib.SyncSession) -> None:
    self.num_steps = 0
    self._sync_session = sync_session

  def note(self) -> None:
    """To be called once it is scheduled."""
    self._sync_session.expect(self)

  @contextlib.contextmanager
  def begun(self) -> Iterator[tuple[tf.Tensor, ...]]:
    """In which a worker is at it; what executions get besides batches."""
    self.num_steps = 0
    with presences.begun(self._sync_session, self) as worker:
      yield (worker,)

  def agree(self, ready: int, *, finished: bool) -> turnouts.StepDecision:
    """What to do with the batches at hand; see `Meetings.agree`."""
    return self._sync_session.agree(ready, finished=finished)

  def settle(self) -> bool:
    """To be called after it; see `Meetings.settle`."""
    return self._sync_session.settle()

  def step_out(self) -> None:
    """Has nobody wait for the worker that is at it, which has no batches.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    self._sync_session.step_out(self._sync_session.worker())
