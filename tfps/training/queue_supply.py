"""What training loops take executions from, where there is a queue."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tfps.input import readers as readers_lib
from tfps.training import attempts as attempts_lib
from tfps.training import queue_sources
from tfps.training import step_program as step_program_lib
from tfps.updates.sync import session as session_lib
from tfps.variables import step_replicas


class Supply:
  """Attempts to do steps on the batches of a queue.

  To be made in the strategy's scope, before a task is lost: it traces.

  Args:
    readers: where the batches come from.
    replicas: of a step.
    trace: traces an execution of a source for a number of steps.
    num_steps: how many steps to do at a time.
    counts: counts what was cut short; None if nothing is known about that.
    sync_session: where workers wait for each other; None if they do not.

  Attributes:
    full: does as many.
  """

  def __init__(
    self,
    readers: readers_lib.Readers,
    replicas: step_replicas.Replicas,
    trace: Callable[[step_program_lib.Source, int], step_program_lib.Execution],
    num_steps: int,
    counts: attempts_lib.Counts | None,
    sync_session: session_lib.SyncSession | None,
  ) -> None:
    self._readers = readers
    readers.split_progress.trace()
    found = queue_sources.of(readers, replicas, num_steps)
    self.full = trace(found.full, num_steps)
    singles = found.traced(lambda source: trace(source, 1))
    self._steps = _Steps(
      self.full, replicas.sizes, singles, counts, sync_session
    )

  @property
  def finished(self) -> bool:
    """Whether all has been done that ever is to be."""
    return self._readers.finished

  def attempt(self, missing: int) -> queue_sources.Attempt:
    """One to do so many steps, or as many as are done at a time."""
    wanted = min(missing, self.full.num_steps)
    return queue_sources.attempt(self._readers, wanted, self._steps)

  def look_again(self) -> None:
    """Finds out whether all is done, which the loss of a ps may have undone.

    Raises:
      tf.errors.OpError: the ps is lost.
    """
    self._readers.finished = self._readers.split_progress.is_finished()


class _Steps:
  """Steps of which the means of metrics, and the bytes, are wanted.

  Args:
    full: does many.
    sizes: how many batches a step may take.
    single: gives what does one, of such a size.
    counts: counts what was cut short; None if nothing is known about that.
    sync_session: where workers wait for each other; None if they do not.
  """

  def __init__(
    self,
    full: step_program_lib.Execution,
    sizes: tuple[int, ...],
    single: Callable[[int], step_program_lib.Execution],
    counts: attempts_lib.Counts | None,
    sync_session: session_lib.SyncSession | None,
  ) -> None:
    self.num_steps = full.num_steps
    self.sizes = sizes
    self.marks = None if counts is None else counts.marks
    self.sync_session = sync_session
    self._full = full
    self._single = single
    self._counts = counts

  def attempt(self) -> attempts_lib.Attempt | None:
    if self._counts is None:
      return None
    return attempts_lib.Countable(self._counts, self._full)

  def do_all(
    self, function: Callable[..., Any], given: Any, *told: Any
  ) -> tuple[Any, int, bool, int, Any]:
    batches, vector = function(given, *told)
    *vector, number, ended, counted = vector.numpy()
    return batches, int(number), bool(ended), int(counted), np.array(vector)

  def do_whole(self, function: Callable[..., Any], given: Any) -> Any:
    (vector,) = function(given)
    return np.array(vector[:-1])

  def do_one(
    self, size: int, given: Any, before: list[Any], *told: Any
  ) -> tuple[int, Any]:
    del before
    (vector,) = self._single(size).function(given, *told)
    *vector, counted = vector.numpy()
    return int(counted), np.array(vector)

  def join(self, results: list[Any]) -> Any:
    """The means of the metrics, and the sums of the bytes; None of none."""
    if not results:
      return None
    stacked = np.stack(results)
    num_metrics = len(self._full.names)
    means = np.mean(stacked[:, :num_metrics], axis=0)
    return np.concatenate([means, np.sum(stacked[:, num_metrics:], axis=0)])
