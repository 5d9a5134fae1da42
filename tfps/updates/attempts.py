"""Attempts at executions: what to repeat after the loss of a task."""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Sequence
import dataclasses
from typing import Any

import tensorflow as tf

from tfps.updates import step_log as step_log_lib
from tfps.variables import placement_ledger


@dataclasses.dataclass(frozen=True)
class Applied:
  """Bounds of the number of an execution's steps that have been applied.

  Attributes:
    least: steps that were applied on all ps.
    most: steps that may have been applied on any ps; the last one in part.
  """

  least: int
  most: int

  @classmethod
  def of(
    cls, steps: Sequence[int], marked: Collection[int], num_steps: int
  ) -> 'Applied':
    """Returns the bounds that follow from a step log.

    Args:
      steps: by ring buffer, the last step that is logged.
      marked: the ring buffers to which the execution's steps are logged.
      num_steps: the number of the execution's steps.
    """
    found = [min(steps[index], num_steps) for index in marked] or [0]
    return cls(min(found), min(max(found) + 1, num_steps))


class Attempt:
  """Calls an execution's function, and again after the loss of a task.

  Before it repeats the function, it reports how many of its steps may thus be
  applied twice.

  Args:
    step_log: the step log.
    num_steps: how many steps the execution has.
    is_logged: whether its function logs them.

  Attributes:
    id: identifies the execution in the step log; None if it is not logged.

  Raises:
    ValueError: the log has no room for the number of steps.
  """

  def __init__(
    self, step_log: step_log_lib.StepLog, num_steps: int, *, is_logged: bool
  ) -> None:
    if num_steps > step_log_lib.MAX_STEPS:
      raise ValueError(
        f'steps_per_execution: {num_steps}, but with a Recovery an execution '
        f'can have at most {step_log_lib.MAX_STEPS} steps. Give fewer.'
      )
    self.num_steps = num_steps
    self.id = step_log.new_id() if is_logged else None
    self._step_log = step_log
    self._task = ''  # on which it was started

  @property
  def args(self) -> tuple[tf.Tensor, ...]:
    """Further arguments of the function: its id, if it is logged."""
    return () if self.id is None else (tf.constant(self.id, tf.int64),)

  def __call__(self, function: Callable[..., Any], *args: Any) -> Any:
    """Calls the function, unless an earlier call applied its steps.

    Args:
      function: the execution's.
      *args: its arguments.

    Returns:
      Its result, or None if there is nothing left to do.

    Raises:
      tf.errors.OpError: a task is lost, which may have interrupted the
        function.
    """
    if self._task and not self._prepare_repeat():
      return None
    self._task = self._step_log.task()
    try:
      return function(*args)
    except BaseException as error:
      if not isinstance(error, tf.errors.OpError):  # it was being traced
        self._task = ''
      raise

  def _prepare_repeat(self) -> bool:
    """Reports steps that may be applied twice; returns whether to repeat."""
    if self.id is None:
      self._step_log.tell(self._task, self.num_steps)
    else:
      steps = self._step_log.read(self.id)
      applied = Applied.of(steps, range(len(steps)), self.num_steps)
      self._step_log.tell(self._task, applied.most)
    return True


class Countable(Attempt):
  """Attempt that counts the applied steps of an interrupted execution.

  It repeats the execution only if no step was applied on all ps.

  Args:
    counts: counts these steps.
    execution: the execution, with its `num_steps`, the ring buffers `marked` by
      its steps, and whether it `is_logged`.

  Attributes:
    num_steps: how many steps were done, once it has ended.
  """

  def __init__(self, counts: 'Counts', execution: Any) -> None:
    super().__init__(
      counts.step_log, execution.num_steps, is_logged=execution.is_logged
    )
    self._counts = counts
    self._marked = execution.marked

  def _prepare_repeat(self) -> bool:
    if self.id is None:
      return super()._prepare_repeat()
    steps = self._step_log.read(self.id)
    if steps[self._counts.ps] > self.num_steps:
      return False  # all steps are applied; only the result is lost
    applied = Applied.of(steps, self._marked, self.num_steps)
    if applied.least:
      self._counts.add(self.id + self.num_steps, applied.least)
      self.num_steps = applied.least
    if applied.most > applied.least:
      self._step_log.tell(self._task, applied.most - applied.least)
    return not applied.least


class Counts:
  """Adds the applied steps of interrupted executions to the global step.

  It traces, so make it in the strategy's scope, before a task can be lost.

  Args:
    step_log: the step log of the executions.
    global_step: counts the steps that were applied.

  Attributes:
    step_log: the step log.
    ps: the index of the ps that has the global step.
  """

  def __init__(
    self,
    step_log: step_log_lib.StepLog,
    global_step: tf.Variable,
  ) -> None:
    ps = placement_ledger.ps_index(global_step.device)
    assert ps is not None, global_step
    self.step_log = step_log
    self.ps = ps

    @tf.function(
      input_signature=[step_log_lib.ID, step_log_lib.ID], autograph=False
    )
    def add(last: tf.Tensor, num_steps: tf.Tensor) -> None:
      with step_log.writer(last).step(1):
        global_step.assign_add(num_steps)

    self._add = add.get_concrete_function()

  def add(self, last: int, num_steps: int) -> None:
    """Adds steps, and logs this as a step after the execution's last one.

    Args:
      last: the number in the step log of the execution's last step.
      num_steps: how many steps to add.

    Raises:
      tf.errors.OpError: a task is lost.
    """
    self._add(tf.constant(last, tf.int64), tf.constant(num_steps, tf.int64))
