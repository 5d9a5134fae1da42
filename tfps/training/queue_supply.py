"""Supply of executions on batches of a queue, for training loops."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tfps.input import readers as readers_lib
from tfps.input import sources
from tfps.training import queue_sources
from tfps.training import step_program as step_program_lib
from tfps.updates import attempts as attempts_lib
from tfps.updates import sessions
from tfps.variables import step_replicas


class Supply:
  """Makes attempts at executions on batches of a queue.

  It traces, so make it before a task can be lost.

  Args:
    readers: the readers of the batches.
    replicas: the replicas of a step.
    make_program: makes the program of a source, given how many steps its full
      executions have.
    num_steps: how many steps a full execution has.
    counts: counts the steps of interrupted executions; None without a
      `Recovery`.
    sync_session: logs the steps of workers, or synchronizes them.

  Attributes:
    program: the program of full executions.
    full: the full execution.
  """

  def __init__(
    self,
    readers: readers_lib.Readers,
    replicas: step_replicas.Replicas,
    make_program: Callable[[sources.Source, int], step_program_lib.StepProgram],
    num_steps: int,
    counts: attempts_lib.Counts | None,
    sync_session: sessions.Session,
  ) -> None:
    self._readers = readers
    readers.split_progress.trace()
    found = queue_sources.of(readers, replicas, num_steps)
    self.program = make_program(found.full, num_steps)
    with self.program.unrolling.timed():
      self.full = self.program.execution(num_steps)
      singles = found.traced(
        lambda source: make_program(source, 1).execution(1)
      )
    self._steps = _Steps(
      self.full, replicas.sizes, singles, counts, sync_session
    )

  def update(self) -> None:
    """Traces full executions again if more of their steps are unrolled now."""
    self.full = self._steps.full = self.program.execution(self.full.num_steps)

  @property
  def finished(self) -> bool:
    """True once all splits of the queue are done."""
    return self._readers.finished

  def attempt(self, missing: int) -> queue_sources.Attempt:
    """Returns an attempt at the missing steps, a full execution at most."""
    wanted = min(missing, self.full.num_steps)
    return queue_sources.attempt(self._readers, wanted, self._steps)

  def warn_is_finished(self) -> None:
    """Warns that there was nothing to train on."""
    self._readers.warn_is_finished('train')

  def refresh(self) -> None:
    """Updates `finished`, which the loss of a ps may have set back.

    Raises:
      tf.errors.OpError: the ps is lost.
    """
    self._readers.finished = self._readers.split_progress.is_finished()


class _Steps:
  """Executes steps whose results are mean metrics and numbers of bytes.

  Args:
    full: the full execution.
    sizes: how many batches a step may take.
    single: returns the execution of one step that takes some batches.
    counts: as for `Supply`.
    sync_session: as for `Supply`.
  """

  def __init__(
    self,
    full: step_program_lib.Execution,
    sizes: tuple[int, ...],
    single: Callable[[int], step_program_lib.Execution],
    counts: attempts_lib.Counts | None,
    sync_session: sessions.Session,
  ) -> None:
    self.num_steps = full.num_steps
    self.sizes = sizes
    self.sync_session = sync_session
    self.full = full
    self._single = single
    self._counts = counts

  def attempt(self) -> attempts_lib.Attempt | None:
    if self._counts is None:
      return None
    return attempts_lib.Countable(self._counts, self.full)

  def do_all(
    self, function: Callable[..., Any], given: Any, *told: Any
  ) -> tuple[Any, int, bool, int, Any]:
    batches, vector = function(*self.full.args(given, *told))
    *vector, number, ended, counted = vector.numpy()
    return batches, int(number), bool(ended), int(counted), np.array(vector)

  def do_whole(
    self, function: Callable[..., Any], given: Any, *told: Any
  ) -> Any:
    (vector,) = function(*self.full.args(given, *told))
    return np.array(vector[:-1])

  def do_one(
    self, size: int, given: Any, before: list[Any], *told: Any
  ) -> tuple[int, Any]:
    del before
    single = self._single(size)
    (vector,) = single.function(*single.args(given, *told))
    *vector, counted = vector.numpy()
    return int(counted), np.array(vector)

  def join(self, results: list[Any]) -> Any:
    return self.full.join(results) if results else None
