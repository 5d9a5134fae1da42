"""Engine of repairs: waits for lost ps, restores their variables, or gives up.

It is the same for a coordinator and for clients that share variables. What
differs between them is in their drivers.
"""

from collections.abc import Callable
from collections.abc import Mapping
import contextlib
import enum
import math
import time

from absl import logging
import tensorflow as tf

from tfps import errors
from tfps._utils import timeouts

Found = Mapping[int, int | None]  # incarnations by index of the ps

# The next look at a lost ps is due after this part of the time it is lost.
_POLL_RATIO = 0.25


class Decision(enum.Enum):
  """Result of a look at the ps, and of a repair.

  | Decision | Because                             | What follows         |
  | -------- | ----------------------------------- | -------------------- |
  | WAIT     | a ps is silent, or not restored yet | another look, later  |
  | RESTORE  | all answer                          | variables get values |
  | RESUME   | all have their variables            | calls are repeated   |
  | GIVE_UP  | the time for `WAIT` is over         | training ends        |
  """

  WAIT = enum.auto()
  RESTORE = enum.auto()
  RESUME = enum.auto()
  GIVE_UP = enum.auto()


class Driver:
  """Actions of a repair, which depend on the kind of the process.

  `find` and `restore` are repeated if they raise a `tf.errors.OpError`, an
  `errors.UnreachableError` or an `errors.DeadlineError`.
  """

  def find(self, lost_secs: float) -> Found:
    """Looks for the ps; moves those that are to be used elsewhere.

    Args:
      lost_secs: for how long a ps has been lost.

    Returns:
      The incarnations of all ps; None for those that do not answer.
    """
    raise NotImplementedError

  def describe(self, ps: int) -> str:
    """Returns the name of a ps, and its address if it is known."""
    raise NotImplementedError

  def quiesced(self) -> contextlib.AbstractContextManager[object]:
    """Returns a context in which nothing is executed on the ps.

    It may raise `errors.DeadlineError` as it is entered.
    """
    raise NotImplementedError

  def begin(self) -> None:
    """Begins what is done within `quiesced`."""

  def restore(self, found: Found) -> bool:
    """Restores the variables of ps that were restarted, within `quiesced`.

    Args:
      found: the incarnations of all ps.

    Returns:
      Whether they have their variables; if not, the chief still restores them.
    """
    raise NotImplementedError


class RepairEngine:
  """Repairs lost ps: relocates, quiesces, restores and resumes, or gives up.

  Args:
    driver: actions of this kind of process.
    timeout_secs: how long to wait for a lost ps to be restored.
    wait: waits some seconds; returns true to stop without a result.
    clock: seconds that only go forward.

  Attributes:
    error: why the last repair was given up; None if it was not.
  """

  def __init__(
    self,
    driver: Driver,
    timeout_secs: float,
    *,
    wait: Callable[[float], object] = lambda secs: time.sleep(secs),
    clock: Callable[[], float] = lambda: time.monotonic(),
  ) -> None:
    self._driver = driver
    self._timeout_secs = timeout_secs
    self._wait = wait
    self._clock = clock
    self._lost_at = 0.0
    self._deadline = math.inf
    self.error: errors.DeadlineError | None = None

  def begin(self, deadline: float | None = None) -> None:
    """Notes that a ps is lost, from which time is counted.

    Args:
      deadline: by the clock; by default after the time that was given.
    """
    self.error = None
    self._lost_at = self._clock()
    if deadline is None:
      deadline = self._lost_at + self._timeout_secs
    self._deadline = deadline

  def run(self) -> Decision:
    """Repairs the ps; once all answer, nothing is executed on them.

    Returns:
      `RESUME`, `GIVE_UP` with `error`, or `WAIT` if it was to stop.
    """
    decision = self._repeat(lambda found: Decision.RESTORE)
    if decision is not Decision.RESTORE:
      return decision
    with contextlib.ExitStack() as stack:
      try:
        # Updates during the restore would be overwritten by it.
        stack.enter_context(self._driver.quiesced())
      except errors.DeadlineError as error:
        self.error = error
        return Decision.GIVE_UP
      self._driver.begin()
      return self.run_quiesced()

  def run_quiesced(self) -> Decision:
    """Repairs the ps, while the caller lets nothing be executed on them.

    Returns:
      As `run` does.
    """
    return self._repeat(self._restore)

  def _repeat(self, act: Callable[[Found], Decision]) -> Decision:
    """Looks at the ps, and acts when all answer, until it need not wait."""
    while (decision := self._try(act)) is Decision.WAIT:
      if self._wait(self._poll_secs()):
        break
    return decision

  def _try(self, act: Callable[[Found], Decision]) -> Decision:
    found: Found = {}
    failure: Exception | None = None
    decision = Decision.WAIT
    try:
      found = self._driver.find(self._clock() - self._lost_at)
      if None not in found.values():
        decision = act(found)
    except (
      tf.errors.OpError,
      errors.UnreachableError,
      errors.DeadlineError,
    ) as error:
      logging.warning('A lost ps could not be restored: %s', error)
      failure = error
    if decision is Decision.WAIT and self._clock() >= self._deadline:
      self.error = self._overdue(found, failure)
      return Decision.GIVE_UP
    return decision

  def _restore(self, found: Found) -> Decision:
    return Decision.RESUME if self._driver.restore(found) else Decision.WAIT

  def _poll_secs(self) -> float:
    """Returns the seconds until the next look.

    Short at first: a ps may be taken over, or restarted, at once.
    """
    times = timeouts.current()
    secs = _POLL_RATIO * (self._clock() - self._lost_at)
    secs = max(times.repair_min_poll_secs, secs)
    return min(times.repair_poll_secs, secs)

  def _overdue(
    self, found: Found, failure: Exception | None
  ) -> errors.DeadlineError:
    secs = self._timeout_secs
    lost = [ps for ps, number in sorted(found.items()) if number is None]
    if lost:
      return errors.not_restarted(map(self._driver.describe, lost), secs)
    if isinstance(failure, errors.DeadlineError):
      return failure
    if failure is None:
      return errors.DeadlineError(
        f'The chief has not restored the variables within {secs:g} seconds. '
        'Check that it is alive.'
      )
    error = errors.DeadlineError(
      f'The variables of lost ps could not be restored within {secs:g} '
      f'seconds: {failure}'
    )
    error.__cause__ = failure
    return error
