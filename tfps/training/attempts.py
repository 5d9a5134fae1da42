"""Executions that the loss of a task may cut short: what to do once more."""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Sequence
import dataclasses
from typing import Any

import tensorflow as tf

from tfps.training import step_log as step_log_lib
from tfps.training import step_program as step_program_lib
from tfps.updates.sync import session as session_lib
from tfps.variables import placement_ledger


@dataclasses.dataclass(frozen=True)
class Applied:
  """How many steps of an execution have been applied.

  Attributes:
    least: everywhere.
    most: anywhere, at most: one step may be there by half.
  """

  least: int
  most: int

  @classmethod
  def of(
    cls, steps: Sequence[int], marked: Collection[int], num_steps: int
  ) -> 'Applied':
    """What follows from marks.

    Args:
      steps: by ring, the last step that is marked.
      marked: the rings in which there are marks; others tell nothing.
      num_steps: of the execution.
    """
    found = [min(steps[index], num_steps) for index in marked] or [0]
    return cls(min(found), min(max(found) + 1, num_steps))


class Attempt:
  """Calls the function of an execution, and says what a second call repeats.

  Args:
    marks: of the executions.
    num_steps: of this one.

  Attributes:
    id: for the function; None if it makes no marks.
  """

  def __init__(self, marks: step_log_lib.StepLog, num_steps: int) -> None:
    self.num_steps = num_steps
    self.id = marks.new_id() if step_log_lib.are_made(num_steps) else None
    self._marks = marks
    self._task = ''  # where it was begun

  @property
  def args(self) -> tuple[tf.Tensor, ...]:
    """What the function is to get besides what it works on."""
    return () if self.id is None else (tf.constant(self.id, tf.int64),)

  def __call__(self, function: Callable[..., Any], *args: Any) -> Any:
    """The function's result, or None if there is nothing left to do.

    Raises:
      tf.errors.OpError: a task is lost, by which the function, if it was
        called, was cut short.
    """
    if self._task and not self._is_to_be_repeated():
      return None
    self._task = self._marks.task()
    try:
      return function(*args)
    except BaseException as error:
      if not isinstance(error, tf.errors.OpError):  # it was being traced
        self._task = ''
      raise

  def _is_to_be_repeated(self) -> bool:
    if self.id is None:
      self._marks.tell(self._task, self.num_steps)
    else:
      steps = self._marks.read(self.id)
      applied = Applied.of(steps, range(len(steps)), self.num_steps)
      self._marks.tell(self._task, applied.most)
    return True


class Countable(Attempt):
  """An execution of which a part is as good as the whole, and is counted.

  Attributes:
    num_steps: how many steps it did, once it is done.
  """

  def __init__(
    self, counts: 'Counts', execution: step_program_lib.Execution
  ) -> None:
    super().__init__(counts.marks, execution.num_steps)
    self._counts = counts
    self._marked = execution.marked

  def _is_to_be_repeated(self) -> bool:
    if self.id is None:
      return super()._is_to_be_repeated()
    steps = self._marks.read(self.id)
    if steps[self._counts.ps] > self.num_steps:
      return False  # all is done, and only its result is lost
    applied = Applied.of(steps, self._marked, self.num_steps)
    if applied.least:
      self._counts.add(self.id + self.num_steps, applied.least)
      self.num_steps = applied.least
    if applied.most > applied.least:
      self._marks.tell(self._task, applied.most - applied.least)
    return not applied.least


class Counts:
  """Counts the steps of executions that were cut short.

  To be made in the strategy's scope, before a task is lost: it traces.

  Args:
    strategy: of the executions.
    marks: theirs.
    global_step: counts steps.

  Attributes:
    ps: on which that is.
  """

  def __init__(
    self,
    strategy: tf.distribute.Strategy,
    marks: step_log_lib.StepLog,
    global_step: tf.Variable,
  ) -> None:
    ps = placement_ledger.ps_index(global_step.device)
    assert ps is not None, global_step
    self.marks = marks
    self.ps = ps

    @tf.function(input_signature=[step_log_lib.ID, step_log_lib.ID])
    def add(last: tf.Tensor, num_steps: tf.Tensor) -> None:
      with step_log_lib.marking(strategy, last).step(1):
        global_step.assign_add(num_steps)

    self._add = add.get_concrete_function()

  def add(self, last: int, num_steps: int) -> None:
    """Adds steps, and marks that beyond the execution's last one.

    Args:
      last: the execution's last mark.
      num_steps: how many.

    Raises:
      tf.errors.OpError: a task is lost.
    """
    self._add(tf.constant(last, tf.int64), tf.constant(num_steps, tf.int64))


def schedule(
  coordinator: Any,
  to_do: step_program_lib.Execution,
  iterators: Any,
  counts: Counts | None,
) -> tuple[Any, Any]:
  """Has a worker do an execution, or what a loss leaves of it.

  Args:
    coordinator: schedules it.
    to_do: the execution.
    iterators: what it works on.
    counts: counts what was cut short; None if nothing is known about that.

  Returns:
    Its remote value, which is None if it was cut short, and what has the number
    of steps that it did, as `num_steps`.
  """
  sync_session = session_lib.of(coordinator.strategy)
  if sync_session is None and counts is None:
    return coordinator.schedule(to_do.function, args=(iterators,)), to_do
  attempt: Any
  if sync_session is not None:
    attempt = sync_session.attempt(to_do.num_steps)
  else:
    assert counts is not None
    attempt = Countable(counts, to_do)
  value = coordinator.schedule_through(
    attempt, to_do.function, (iterators, *attempt.args)
  )
  return value, attempt
