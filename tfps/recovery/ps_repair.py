"""Repair of a coordinator's lost ps.

Threads that find a loss wait for one thread, which repairs once for all.
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
import contextlib
import threading

from absl import logging
import tensorflow as tf

from tfps import errors
from tfps._compat import preemption_handler
from tfps._compat import stale_cache
from tfps._utils import quiesce_lock
from tfps._utils import timeouts
from tfps.recovery import error_classifier
from tfps.recovery import repair_engine
from tfps.recovery import repair_interface
from tfps.server import task_registry

Incarnations = Mapping[tuple[str, int], int | None]


class PsRepairs(repair_engine.Driver):
  """Detects losses of a coordinator's ps and repairs them.

  Args:
    gate: entered by whatever is executed.
    incarnations: see `coordinator_failures.FailureHandler`.
    condition: held while `is_lost` changes; notified when a repair has ended.
    ask: requests a call of `repair` in the thread that repairs.
    update: tells the runtime which tasks are in the cluster.
    stopping: set when nothing is to be repaired any more.
    replaced: returns the error by which this process has learnt that another
      one has replaced it; None if it has not.
    cancel: cancels what workers execute.

  Attributes:
    repairs: actions of a repair; None before `repair_with`.
    registry: the ps in use, by index.
    num_repairs: number of repairs so far.
    is_lost: whether a ps is lost or a repair was requested.
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
    self.registry: task_registry.TaskRegistry[int]
    self.registry = task_registry.TaskRegistry()
    self.num_repairs = 0
    self.is_lost = False
    self._timeout_secs = 0.0
    self._engine: repair_engine.RepairEngine
    self._found: Incarnations = {}
    self._tell_rest: Callable[[bool], object] = lambda rest: None
    self._classifier = error_classifier.ErrorClassifier()
    self._error: BaseException | None = None

  def repair_with(
    self,
    repairs: repair_interface.Repairs,
    ps: Mapping[int, int | None],
    timeout_secs: float,
  ) -> None:
    """Repairs lost ps from now on.

    Args:
      repairs: actions of a repair.
      ps: incarnations of the ps, by index.
      timeout_secs: how long to wait for a lost ps.
    """
    self.registry.accept(ps)
    self.repairs = repairs
    self._timeout_secs = timeout_secs
    self._engine = repair_engine.RepairEngine(
      self, timeout_secs, wait=self._stopping.wait
    )

  def prepare(self) -> None:
    """Prepares an execution; repairs ps that are lost meanwhile.

    Raises:
      tf.errors.OpError: it has failed, and not because of a lost ps.
    """
    while self.repairs is not None:
      num_repairs = self.num_repairs
      try:
        self.repairs.prepare()
      except tf.errors.OpError as error:
        if not self.can_retry(error, num_repairs):
          raise
      else:
        return

  def can_retry(self, failure: Exception, num_repairs: int) -> bool:
    """Waits for a repair, if one is due; returns whether to try again.

    Args:
      failure: of a call.
      num_repairs: number of repairs when the call began.

    Raises:
      errors.DeadlineError: a ps was not restarted in time.
      errors.ReplacedError: another process has replaced this one.
    """
    if self.repairs is None:
      return False
    if num_repairs != self.num_repairs:
      return True
    if of('ps', self._incarnations()) == self.registry.known:
      may_pass = preemption_handler.is_loss_of_ps(
        failure
      ) or error_classifier.is_cancelled_transfer(failure)
      return may_pass and self._reconnects(failure)
    self._wait_for_repair()
    return True

  def check(self, workers: Collection[int]) -> None:
    """Checks that this process may still use the ps and some workers.

    Args:
      workers: indices of the workers.

    Raises:
      errors.ReplacedError: another process has replaced this one.
    """
    assert self.repairs is not None
    self.repairs.check({'ps': self.registry.known, 'worker': workers})

  def note_loss(self) -> None:
    """Requests a repair; the caller holds the condition."""
    if not self.is_lost:
      self.is_lost = True
      self._engine.begin()
    self._ask()

  def has_changed(self) -> bool:
    """Returns whether a ps has restarted or stays silent, without a failure."""
    return self.repairs is not None and self.registry.has_changed(
      of('ps', self._incarnations())
    )

  def repair(self, tell_rest: Callable[[bool], object]) -> bool:
    """Repairs the ps once all answer.

    Args:
      tell_rest: argument `tell` of `QuiesceLock.closed`.

    Returns:
      Whether the repair has ended, with or without success.
    """
    self._tell_rest = tell_rest
    decision = self._engine.run()
    if decision is repair_engine.Decision.GIVE_UP:
      self._error = self._engine.error
    return decision is not repair_engine.Decision.WAIT

  # Called by the engine.

  def find(self, lost_secs: float) -> repair_engine.Found:
    assert self.repairs is not None
    self._found = self._incarnations()
    silent = {i for i, n in of('ps', self._found).items() if n is None}
    if silent and self.repairs.relocate(silent, lost_secs):
      self._found = self._incarnations()
    return of('ps', self._found)

  def describe(self, ps: int) -> str:
    assert self.repairs is not None
    return self.repairs.describe(ps)

  def quiesced(self) -> contextlib.AbstractContextManager[None]:
    is_new = of('ps', self._found) != self.registry.known
    return quiesce_lock.quiesced(
      self._gate,
      self._timeout_secs,
      self._tell_rest,
      hurry=self._hurry() if is_new else None,
    )

  def begin(self) -> None:
    assert self.repairs is not None
    self.repairs.begin()

  def restore(self, found: repair_engine.Found) -> bool:
    assert self.repairs is not None
    restarted = self.registry.look(found)
    self._error = None
    self._update(self._found)
    try:
      if restarted:
        self.repairs.rebuild(restarted)
    except (tf.errors.OpError, errors.DeadlineError):
      raise
    except Exception as error:
      self._error = error
    self.registry.accept(found)
    self.num_repairs += 1
    return True

  def _hurry(self) -> quiesce_lock.Hurry:
    secs = timeouts.current().lost_execution_secs

    def cancel(names: list[str]) -> None:
      logging.warning(
        '%s is still executing %g seconds after all ps were back: its '
        'execution is cancelled and repeated.',
        ', '.join(names),
        secs,
      )
      self._cancel()

    return quiesce_lock.Hurry(secs, cancel)

  def _reconnects(self, failure: Exception) -> bool:
    """Returns whether to try again a call that cannot reach a living ps."""
    if self._classifier.record() > self._timeout_secs:
      return False
    logging.warning('A ps cannot be reached: %s', failure)
    stale_cache.forget_if_stale(failure)
    stale = self._classifier.ps_to_reconnect(failure, self.registry.known)
    self.registry.accept(dict.fromkeys(stale))
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


def of(job: str, found: Incarnations) -> dict[int, int | None]:
  """Returns the incarnations of a job's tasks, by index."""
  return {i: value for (name, i), value in found.items() if name == job}
