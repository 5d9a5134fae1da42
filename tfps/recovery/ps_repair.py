"""Has lost ps repaired, once, while all who have found the loss wait."""

from collections.abc import Callable
from collections.abc import Mapping
import contextlib
import threading
import time

from absl import logging
import tensorflow as tf

from tfps import errors
from tfps._compat import preemption_handler
from tfps._compat import stale_cache
from tfps._utils import quiesce_lock
from tfps._utils import timeouts
from tfps.recovery import cluster_changes
from tfps.recovery import error_classifier
from tfps.recovery import repair_interface

# Of the time that a ps has been lost, how much to wait before the next look.
_PATIENCE = 0.25

Incarnations = Mapping[tuple[str, int], int | None]


class PsRepairs:
  """The repairs of a coordinator's ps.

  Args:
    gate: within which something is executed.
    incarnations: as for `failures.FailureHandler`.
    condition: held where a loss, or its end, is noted; notified of its end.
    ask: asks for a call of `repair` by the thread that repairs.
    update: tells the runtime who is in the cluster.
    stopping: set when nothing is to be repaired any more.
    replaced: the error by which this process has learnt that it is none of the
      cluster's any more, if it has.
    cancel: cancels what workers execute.

  Attributes:
    repairs: does what has to be done; None before `begin`.
    known: the incarnations of the ps that are in use.
    num_repairs: how often lost ps have been repaired.
    is_lost: whether a ps is lost, or a repair was asked for.
  """

  def __init__(
    self,
    gate: quiesce_lock.QuiesceLock,
    incarnations: Callable[[], Incarnations],
    *,
    condition: threading.Condition,
    ask: Callable[[], object],
    update: Callable[[Incarnations], object],
    stopping: threading.Event,
    replaced: Callable[[], errors.ReplacedError | None],
    cancel: Callable[[], object],
  ) -> None:
    self._gate = gate
    self._incarnations = incarnations
    self._condition = condition
    self._ask = ask
    self._update = update
    self._stopping = stopping
    self._replaced = replaced
    self._cancel = cancel
    self.repairs: repair_interface.Repairs | None = None
    self.known: dict[int, int | None] = {}
    self.num_repairs = 0
    self.is_lost = False
    self._timeout_secs = 0.0
    self._lost_at = 0.0
    # That of tasks which cannot reach ps that are alive.
    self._errors_seen = error_classifier.ErrorClassifier()
    self._changes = cluster_changes.ClusterChanges()
    self._error: BaseException | None = None

  def begin(
    self,
    repairs: repair_interface.Repairs,
    ps: Mapping[int, int | None],
    timeout_secs: float,
  ) -> None:
    """Repairs what is lost from now on.

    Args:
      repairs: does it.
      ps: the incarnations of the ps.
      timeout_secs: how long to wait for a ps that does not come back.
    """
    self.known = dict(ps)
    self.repairs = repairs
    self._timeout_secs = timeout_secs

  def prepare(self) -> None:
    """To be called before each execution.

    Raises:
      tf.errors.OpError: a ps is lost for good, or it is none.
    """
    while self.repairs is not None:
      num_repairs = self.num_repairs
      try:
        self.repairs.prepare()
      except tf.errors.OpError as error:
        if not self.mends(error, num_repairs):
          raise
      else:
        return

  def mends(self, failure: Exception, num_repairs: int) -> bool:
    """Whether a ps had to be repaired, and has been; waits for it.

    Args:
      failure: of something that was tried.
      num_repairs: what it was then.
    """
    if self.repairs is None:
      return False
    if num_repairs != self.num_repairs:  # it has been, meanwhile
      return True
    if of('ps', self._incarnations()) == self.known:
      is_of_ps = preemption_handler.is_loss_of_ps(failure)
      return (is_of_ps or _is_cut_off(failure)) and self._passes(failure)
    self._wait_for_repair()
    return True

  def note_loss(self) -> None:
    """Asks for a repair; the condition is held."""
    if not self.is_lost:
      self.is_lost = True
      self._lost_at = time.monotonic()
    self._ask()

  def have_changed(self) -> bool:
    """Whether a ps is lost, be it that nothing has failed of it."""
    return self.repairs is not None and self._changes.are(
      of('ps', self._incarnations()), self.known
    )

  def repair(self, tell_rest: Callable[[bool], object]) -> bool:
    """Repairs the ps, once all have restarted; whether it could, or never can.

    Args:
      tell_rest: as for `Gate.closed`.
    """
    assert self.repairs is not None
    ps = of('ps', self._find())
    if None in ps.values():
      return self._has_given_up(ps)
    with contextlib.ExitStack() as stack:
      try:
        # What was executed before all is in place would be set back by it.
        stack.enter_context(
          self._gate.closed(
            tell_rest,
            self._timeout_secs,
            hurry=self._hurry() if ps != self.known else None,
          )
        )
      except quiesce_lock.OccupiedError as error:
        self._error = errors.DeadlineError(
          f'After {self._timeout_secs:g} seconds, {", ".join(error.names)} is '
          'not done with what it executed when a ps was lost, which has '
          'therefore not been given back what it had. Has it stopped '
          'answering? Start it again.'
        )
        return True
      self.repairs.begin()
      while not self._is_repaired():
        if self._stopping.wait(self.retry_secs()):
          return False
    return True

  def retry_secs(self) -> float:
    """How long to wait before the next look at ps that are lost.

    Short at first: a ps may be taken over, or back, at once.
    """
    lost_secs = time.monotonic() - self._lost_at
    times = timeouts.current()
    secs = max(times.repair_min_poll_secs, _PATIENCE * lost_secs)
    return min(times.repair_poll_secs, secs)

  def _hurry(self) -> quiesce_lock.Hurry:
    secs = timeouts.current().lost_execution_secs

    def cancel(names: list[str]) -> None:
      logging.warning(
        '%s is not done %g seconds after all ps were back: what it executes is '
        'cancelled, and done again.',
        ', '.join(names),
        secs,
      )
      self._cancel()

    return quiesce_lock.Hurry(secs, cancel)

  def _passes(self, failure: Exception) -> bool:
    """Whether to try again what could not reach a ps that is alive."""
    if self._errors_seen.note() > self._timeout_secs:
      return False
    logging.warning('A ps cannot be reached: %s', failure)
    stale_cache.forget_if_stale(failure)
    strangers = self._errors_seen.strangers(failure, self.known)
    self.known.update(dict.fromkeys(strangers))
    self._stopping.wait(timeouts.current().repair_poll_secs)
    return not self._stopping.is_set()

  def _wait_for_repair(self) -> None:
    with self._condition:
      self.note_loss()
      self._condition.wait_for(
        lambda: not self.is_lost or self._stopping.is_set() or self._replaced()
      )
      if error := self._replaced() or self._error:
        raise error

  def _is_repaired(self) -> bool:
    """Whether there is nothing more to be done about the ps."""
    found = self._find()
    ps = of('ps', found)
    if None in ps.values():
      return self._has_given_up(ps)
    try:
      self._rebuild(found)
    except (tf.errors.OpError, errors.DeadlineError) as error:
      logging.warning('A lost ps could not be taken back: %s', error)
      if self._is_overdue():
        self._error = error
        return True
      return False
    return True

  def _is_overdue(self) -> bool:
    return time.monotonic() - self._lost_at >= self._timeout_secs

  def _rebuild(self, found: Incarnations) -> None:
    """Gives ps that have restarted what they had."""
    assert self.repairs is not None
    ps = of('ps', found)
    restarted = {i for i in ps if ps[i] != self.known.get(i)}
    self._error = None
    self._update(found)
    try:
      if restarted:
        self.repairs.rebuild(restarted)
    except (tf.errors.OpError, errors.DeadlineError):
      raise
    except Exception as error:
      self._error = error
    self.known = ps
    self.num_repairs += 1

  def _find(self) -> Incarnations:
    """Each task's incarnation, once ps that have another address are there."""
    assert self.repairs is not None
    found = self._incarnations()
    silent = {i for i, value in of('ps', found).items() if value is None}
    lost_secs = time.monotonic() - self._lost_at
    if silent and self.repairs.replace(silent, lost_secs):
      return self._incarnations()
    return found

  def _has_given_up(self, ps: Mapping[int, int | None]) -> bool:
    if not self._is_overdue():
      return False
    names = [f'ps:{i}' for i, value in sorted(ps.items()) if value is None]
    self._error = errors.not_back(names, self._timeout_secs)
    return True


def of(job: str, found: Incarnations) -> dict[int, int | None]:
  """The incarnations of a job's tasks, by their indices."""
  return {i: value for (name, i), value in found.items() if name == job}


def _is_cut_off(failure: Exception) -> bool:
  """Whether an operation was cancelled while it received another task's value.

  If a part of a function fails on one task, TensorFlow cancels the parts on
  other tasks, and may report the cancellation in place of its cause.
  """
  text = 'RecvFromRemoteAsync is cancelled'
  return isinstance(failure, tf.errors.CancelledError) and text in str(failure)
