"""Decision when more steps of an execution are unrolled."""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import math
import time

from absl import logging

from tfps.training import step_loop
from tfps.wire import transfers as transfers_lib

# Steps are done in loops for this many times the time that it takes to unroll
# more of them.
_TIMES_BEFORE_UNROLLING = 10

# Operations of all steps of an execution that needs no loop. For a thousand of
# them a worker takes some 10 MB, and they take 2 seconds to prepare on a slow
# machine.
_MAX_OPERATIONS = 20_000

# Operations of the steps in the body of a loop. More bring little: with 26
# embeddings, 5 steps execute within 5% as fast as 20.
_MAX_OPERATIONS_IN_BODY = 8_000


class Unrolling:
  """Decision how many steps of full executions are unrolled.

  A loop over single steps is prepared soon. Several steps in its body, or all
  steps one after another, execute faster, but take long to prepare: each step
  at most as long as it took from the first call to the first result. They are
  unrolled once loops have taken ten times as long, so that training is
  prolonged by a tenth at most, if they will take ten times as long again.

  Args:
    transfers: those of the strategy, which say whether steps may be unrolled.

  Attributes:
    is_unrolled: whether more steps of full executions are unrolled.
  """

  def __init__(self, transfers: transfers_lib.Transfers) -> None:
    self._transfers = transfers
    self.is_unrolled = False
    self._may_unroll = True
    self._num_operations = 1
    self._began = 0.0
    self._secs = 0.0
    self._postponed_until = 0.0
    self._secs_to_prepare: float | None = None

  @contextlib.contextmanager
  def timed(self) -> Iterator[None]:
    """Adds the time within the context to that of the loops."""
    began = time.monotonic()
    self._began = self._began or began
    try:
      yield
    finally:
      self._secs += time.monotonic() - began

  def note_result(self) -> None:
    """Notes that an execution has ended, of which only the first matters."""
    if self._secs_to_prepare is None:
      self._secs_to_prepare = time.monotonic() - self._began

  def note_size(self, num_operations: int) -> None:
    """Notes how many operations a step has."""
    self._num_operations = max(1, num_operations)

  def unroll_if_due(
    self,
    full: int,
    within_secs: float | None,
    can_trace: Callable[[], bool],
    *,
    left: float = math.inf,
  ) -> bool:
    """Unrolls more steps from now on, if that is due; returns whether it was.

    While a task is frozen, others go on in loops rather than wait for it.

    Args:
      full: how many steps a full execution has.
      within_secs: how long the first of them may take, which prepares them;
        None for no limit.
      can_trace: returns whether no task is frozen; called if it is due, and
        again when loops have taken twice as long.
      left: how many steps are left for each that has been done.
    """
    if self.is_unrolled or not self._may_unroll or not self._secs_to_prepare:
      return False
    size = self._size(full)
    secs = size * self._secs_to_prepare
    is_due = (
      size > self._transfers.loop_size
      and self._secs > self._postponed_until
      and self._secs * min(1.0, left) > _TIMES_BEFORE_UNROLLING * secs
      and (within_secs is None or secs < within_secs)
    )
    if is_due and not can_trace():
      self._postponed_until = 2 * self._secs
      return False
    self.is_unrolled = is_due
    return is_due

  def give_up(self, reason: Exception) -> bool:
    """Leaves steps in loops from now on; returns whether more were unrolled.

    Args:
      reason: why more of them cannot be traced.
    """
    was_unrolled, self.is_unrolled = self.is_unrolled, False
    self._may_unroll = False
    if was_unrolled:
      logging.warning(
        'Steps stay in a loop, which is slower: they cannot be traced again. '
        '%s',
        reason,
      )
    return was_unrolled

  def form(self, num_steps: int, full: int) -> step_loop.Form:
    """Returns the form of an execution.

    Args:
      num_steps: how many steps it has.
      full: how many steps a full execution has.
    """
    size = self._transfers.loop_size
    if self.is_unrolled and num_steps == full:
      size = self._size(full)
    return step_loop.Form.of(num_steps, full, size)

  def _size(self, full: int) -> int:
    most = full
    if full * self._num_operations > _MAX_OPERATIONS:
      most = _MAX_OPERATIONS_IN_BODY // self._num_operations
    return self._transfers.unrolled_size(full, most)
