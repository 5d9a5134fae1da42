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


class Shift:
  """Takes part in meetings while a worker is at it.

  Args:
    meetings: where workers wait for each other.

  Attributes:
    num_steps: of the execution that is about to be begun.
  """

  comes_and_goes = True

  def __init__(self, meetings: session_lib.Meetings) -> None:
    self.num_steps = 0
    self._meetings = meetings

  def note(self) -> None:
    """To be called once it is scheduled."""
    self._meetings.expect(self)

  @contextlib.contextmanager
  def begun(self) -> Iterator[tuple[tf.Tensor, ...]]:
    """In which a worker is at it; what executions get besides batches."""
    self.num_steps = 0
    with presences.begun(self._meetings, self) as worker:
      yield (worker,)

  def agree(self, ready: int, *, finished: bool) -> turnouts.Turnout:
    """What to do with the batches at hand; see `Meetings.agree`."""
    return self._meetings.agree(ready, finished=finished)

  def settle(self) -> bool:
    """To be called after it; see `Meetings.settle`."""
    return self._meetings.settle()

  def step_out(self) -> None:
    """Has nobody wait for the worker that is at it, which has no batches.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    self._meetings.step_out(self._meetings.worker())
