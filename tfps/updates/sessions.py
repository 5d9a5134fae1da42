"""Sessions: what the steps of a strategy's workers have to do with each other.

`sync.session` has those of workers that wait for each other through the ps,
`allreduce.session` those of workers that add up gradients among themselves.
"""

from collections.abc import Callable
import contextlib
from typing import Any

import tensorflow as tf

from tfps.updates import attempts
from tfps.updates import step_log as step_log_lib
from tfps.updates import steppers
from tfps.updates.sync import participation

WORKER = tf.TensorSpec([], tf.int64)


class NoExecutions:
  """Executions of workers that do not wait for each other."""

  def rest(self) -> None:
    """Does nothing: no worker waits for an execution."""

  def try_to_rest(self, rest: bool) -> None:
    """Does nothing: no worker waits for an execution.

    Args:
      rest: unused.
    """

  def awaited(self) -> contextlib.AbstractContextManager[None]:
    """Returns a context that does nothing."""
    return contextlib.nullcontext()


class Session:
  """Base class of sessions.

  Attributes:
    waits: whether workers wait for each other. Then each function of steps gets
      the number of the worker that executes it.
    makes_one_update: whether a step of all workers makes one update.
    step_log: logs the steps that are applied; None if nothing does, or if the
      session itself knows how far an execution came.
    executions: those that are scheduled or running, for which workers wait.
  """

  waits = True
  makes_one_update = False
  step_log: step_log_lib.StepLog | None = None

  executions: Any = NoExecutions()
  worker: Callable[[], int]

  def specs(self, *, is_logged: bool) -> tuple[tf.TensorSpec, ...]:
    """Returns the types of a function's last arguments, for `sync_step`.

    Args:
      is_logged: whether functions of its form are logged.
    """
    del is_logged
    return (WORKER,)

  def attempt(self, num_steps: int, *, is_logged: bool = False) -> Any:
    """Returns what calls an execution's function, and again after a loss.

    Args:
      num_steps: how many steps the execution has.
      is_logged: whether its function logs them.

    Returns:
      An attempt, which has further arguments of the function as `args`; None if
      the function is called as it is.
    """
    del is_logged
    own: Any = self
    return participation.Attempt(own, num_steps)

  def sync_step(self, *told: tf.Tensor, **options: Any) -> steppers.Stepper:
    """Returns the stepper of the function that is being traced.

    Args:
      *told: the function's last arguments.
      **options: `count`, called where a step is counted by itself, and
        `comes_and_goes`, whether workers take part only while they have
        batches.
    """
    raise NotImplementedError

  def around(self, steps: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function of steps with what is to be done around them.

    Args:
      steps: a `tf.function` whose last arguments are those of `sync_step`.
    """
    return steps

  def sum_rows(self, rows: tf.Tensor, after: steppers.Stepper) -> tf.Tensor:
    """Returns what the steps add to metrics: each worker's by itself.

    Args:
      rows: what this worker's steps add, a row for each.
      after: the stepper after the steps.
    """
    del after
    return rows

  def limit(self, updates_left: Callable[[], int] | None) -> None:
    """Limits the updates that workers make together, from the next `start`.

    Args:
      updates_left: returns how many there may be, at each start; None for any
        number.
    """

  def start(self) -> None:
    """Resets what workers share, before training and after a restore."""

  def paused(self) -> contextlib.AbstractContextManager[None]:
    """Returns a context in which no update is made by several workers."""
    return contextlib.nullcontext()

  def total(self) -> Any:
    """Returns counters of the updates made together; None if there are none."""
    return None

  def start_afresh(self) -> None:
    """Forgets all executions, then starts; nothing may be executing."""

  def prepare(self, attempt: participation.Attempt) -> bool:
    """Returns whether an attempt has steps left to do, before it is called.

    Args:
      attempt: that of an execution.
    """
    del attempt
    return True

  def agree(self, ready: int, *, finished: bool) -> participation.StepDecision:
    """Decides how many steps to do on batches of a queue; here, on all.

    Args:
      ready: number of batches at hand.
      finished: whether no work is left.
    """
    return participation.StepDecision.alone(ready, finished=finished)

  def settle(self) -> bool:
    """Copies the results of steps on a queue's batches to all workers.

    Returns:
      Whether the steps of this worker count.
    """
    return True

  def leave(self, attempt: Any) -> None:
    """Notes that an execution ended.

    Args:
      attempt: that of the execution.
    """

  def end(self, worker: int) -> None:
    """Notes that a worker is done, so that others do not wait for it.

    Args:
      worker: its number.
    """


class NoSync(Session):
  """Session of workers that do not wait for each other.

  Args:
    step_log: logs the steps that are applied; None without a `Recovery`.
  """

  waits = False

  def __init__(self, step_log: step_log_lib.StepLog | None = None) -> None:
    self.step_log = step_log
    self.worker = lambda: 0

  def specs(self, *, is_logged: bool) -> tuple[tf.TensorSpec, ...]:
    return (step_log_lib.ID,) if self.step_log and is_logged else ()

  def attempt(
    self, num_steps: int, *, is_logged: bool = False
  ) -> attempts.Attempt | None:
    if self.step_log is None:
      return None
    return attempts.Attempt(self.step_log, num_steps, is_logged=is_logged)

  def sync_step(self, *told: tf.Tensor, **options: Any) -> steppers.Stepper:
    del options
    if self.step_log is None or not told:
      return step_log_lib.NoStepLogWriter()
    return self.step_log.writer(*told)


def of(strategy: Any) -> Session:
  """Returns a strategy's session; `NoSync` of one that is not of tfps."""
  found: Session | None = getattr(strategy, 'sync_session', None)
  return NoSync() if found is None else found
