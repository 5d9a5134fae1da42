"""Attempts at executions on batches of a queue, which may run short."""

from collections.abc import Callable
import contextlib
import time
from typing import Any
from typing import Protocol

from tfps._utils import timeouts
from tfps.input import readers as readers_lib
from tfps.input import split_progress as split_progress_lib
from tfps.input import worker_reader
from tfps.updates import attempts as attempts_lib
from tfps.updates.sync import participation

_AGAIN = object()

# Further arguments of a function: its worker's index, or its id.
_ExtraArgs = tuple[Any, ...]


class Steps(Protocol):
  """Interface to the functions that execute steps on buffered batches.

  Attributes:
    num_steps: how many steps a full execution has.
    sizes: how many batches a step may take, in descending order: one for each
      of its replicas, or for some of them if there are fewer batches.
    sync_session: logs the steps of workers, or synchronizes them.
  """

  num_steps: int
  sizes: tuple[int, ...]
  sync_session: Any

  def attempt(self) -> attempts_lib.Attempt | None:
    """Returns an attempt that handles interruptions; None if not logged."""

  def do_all(
    self, function: Callable[..., Any], given: Any, *told: Any
  ) -> tuple[Any, int, bool, int, Any]:
    """Executes all steps at once, and prefetches batches concurrently.

    Args:
      function: the execution's.
      given: its input; see `sources.Source`.
      *told: its further arguments.

    Returns:
      The prefetched batches, their number, whether the split has ended, how
      many steps count, and the result.
    """

  def do_whole(
    self, function: Callable[..., Any], given: Any, *told: Any
  ) -> Any:
    """Executes all steps at once, without prefetching.

    Args:
      function: the execution's.
      given: its input; see `sources.Source`.
      *told: its further arguments.

    Returns:
      The execution's result.
    """

  def do_one(
    self, size: int, given: Any, before: list[Any], *told: Any
  ) -> tuple[int, Any]:
    """Executes a single step.

    Args:
      size: how many batches it takes.
      given: its input.
      before: the results of earlier single steps of the execution.
      *told: its further arguments.

    Returns:
      Whether it counts, as 1 or 0, and its result.
    """

  def join(self, results: list[Any]) -> Any:
    """Returns the execution's result from those of its single steps."""


class Interruptible:
  """Base class of attempts: what is known of their steps after a loss.

  Args:
    wanted: how many steps to do, if there are enough batches.
    steps: executes them.

  Attributes:
    num_steps: how many steps were done, once it has ended.
  """

  def __init__(self, wanted: int, steps: Steps) -> None:
    self.num_steps = wanted
    self._wanted = wanted
    self._steps = steps
    self._step_log = steps.sync_session.step_log
    self._execution: attempts_lib.Attempt | None = None
    self._singles: list[Any] = []
    self._task = ''  # on which a single step was started

  def _do_full(self, call: Callable[..., Any], *told: Any) -> Any:
    """Does a full execution.

    Args:
      call: executes it, with further arguments of its function.
      *told: these, if it is not logged.
    """
    self._execution = self._steps.attempt()
    if self._execution is None:
      return call(*told)
    return self._execution(call, *self._execution.args)

  def _do_single(self, size: int, given: Any, *told: Any) -> tuple[int, Any]:
    """Does a single step; see `Steps.do_one`."""
    if self._step_log is not None:
      self._task = self._step_log.task()
    found = self._steps.do_one(size, given, self._singles, *told)
    self._task = ''
    return found

  def _end_interrupted(self, record: Callable[[int], object]) -> bool:
    """Returns whether steps done before an interruption end the attempt.

    Args:
      record: records the progress of splits after a number of steps of a full
        execution, which does so only as a whole.

    Raises:
      tf.errors.OpError: a task is lost again.
    """
    number = len(self._singles)
    if self._execution is not None:
      again = self._execution(lambda *id: _AGAIN, *self._execution.args)
      number = 0 if again is _AGAIN else self._execution.num_steps
      if number:
        record(number)
      self._execution = None
    elif self._task and self._step_log is not None:
      self._step_log.tell(self._task, 1)
      self._task = ''
    self.num_steps = number
    return number > 0


class Attempt(Interruptible):
  """Does steps on batches of a queue, and repeats them after a loss if needed.

  With enough batches it does one full execution, otherwise single steps.

  Args:
    readers: the readers of this process' workers.
    wanted: how many steps to do, if there are enough batches.
    steps: executes them.

  Attributes:
    num_steps: how many steps were done, once it has ended.
    sat_out: whether this worker did none, but waited for steps of others.
  """

  def __init__(
    self, readers: 'readers_lib.Readers', wanted: int, steps: Steps
  ) -> None:
    super().__init__(wanted, steps)
    self.sat_out = False
    self._readers = readers
    self._width = steps.sizes[0]
    self._reader: worker_reader.WorkerReader | None = None  # of an interruption
    self._results: list[Any] = []  # one, once the steps are done
    # Progress of splits to record once all workers have the updates.
    self._uncounted: list[split_progress_lib.ProgressUpdate] = []
    self._is_counted_later = False
    self._shift: participation.QueueParticipation | None = None
    if steps.sync_session.waits:
      self._shift = participation.QueueParticipation(steps.sync_session)

  def note(self) -> None:
    """Announces the steps to other workers, once they are scheduled."""
    if self._shift is not None:
      self._shift.note()

  def __call__(self, function: Callable[..., Any]) -> Any:
    """Executes the steps; after a loss, what is left of them.

    Args:
      function: does all steps at once.

    Returns:
      The execution's result; None if a loss made it unavailable.

    Raises:
      errors.InputError: a split cannot be read.
      tf.errors.OpError: a task is lost; call it again after the repair.
      ValueError: the dataset of a split does not end.
    """
    if not self._results:
      self._results.append(self._execute(function))
    if self._shift is not None:
      self._settle(self._shift)
    return self._results[0]

  def _execute(self, function: Callable[..., Any]) -> Any:
    with self._participating() as told:
      if self._reader is not None and self._is_settled(self._reader):
        return self._steps.join(self._singles)
      reader = self._reader = self._readers.here()
      with reader.busy():
        turnout = self._agree(reader)
        with reader.in_use():
          if turnout.number == self._steps.num_steps * self._width:
            return self._do_all(reader, function, told)
          self._do_singly(reader, turnout.number, told)
      self._end(reader)
    if turnout.is_idle and not reader.finished:
      self._readers.check_owners()  # of the splits that other workers read
      time.sleep(timeouts.current().poll_secs)
    return self._steps.join(self._singles)

  def _participating(self) -> contextlib.AbstractContextManager[_ExtraArgs]:
    if self._shift is None:
      return contextlib.nullcontext(())
    return self._shift.begun()

  def _agree(
    self, reader: worker_reader.WorkerReader
  ) -> participation.StepDecision:
    """Buffers batches; returns the workers' joint decision about steps."""
    with reader.in_use():
      ready = reader.gather(
        self._wanted * self._width, self._readers.taking, self._readers.until
      )
    if self._shift is None:
      turnout = participation.StepDecision.alone(
        ready, finished=reader.finished
      )
    else:
      turnout = self._shift.agree(ready, finished=reader.finished)
    if reader.finished and not (turnout.finished or ready):
      self._readers.until += 1  # other workers are in the next epoch
    reader.finished = turnout.finished
    self.sat_out = turnout.is_partial and not turnout.number
    self._is_counted_later = turnout.is_partial
    return turnout

  def _settle(self, shift: participation.QueueParticipation) -> None:
    """Records progress that had to wait, or reads the batches again if lost."""
    if shift.settle():
      for progress in self._uncounted:
        self._readers.split_progress.record(progress)
      self._uncounted.clear()
    elif self._uncounted:
      self._uncounted.clear()
      self._give_back(self._readers.here())

  def _given(
    self, reader: worker_reader.WorkerReader, num_steps: int, width: int
  ) -> Any:
    return reader.given(num_steps, width, counts=not self._is_counted_later)

  def _use(self, reader: worker_reader.WorkerReader, number: int) -> None:
    if self._is_counted_later:
      self._uncounted.append(reader.progress_after(number))
    reader.use(number)

  def _do_all(
    self,
    reader: worker_reader.WorkerReader,
    function: Callable[..., Any],
    told: _ExtraArgs,
  ) -> Any:
    given = self._given(reader, self._wanted, self._width)
    self._about_to_do(self._wanted)
    outcome = self._do_full(
      lambda *own: self._steps.do_all(function, given, *own), *told
    )
    batches, number, ended, counted, result = outcome
    if counted < self._wanted:
      self._give_back(reader)
    else:
      self._use(reader, self._wanted * self._width)
      reader.add_read_ahead(batches, number, ended=ended)
    self._end(reader)
    self.num_steps = counted
    return result

  def _do_singly(
    self, reader: worker_reader.WorkerReader, ready: int, told: _ExtraArgs
  ) -> None:
    """Does single steps on `ready` batches, then lets other workers proceed."""
    left = ready
    while left and len(self._singles) < self._wanted:
      size = next(size for size in self._steps.sizes if size <= left)
      if not self._do_one(reader, size, told):
        self._give_back(reader)
        break
      left -= size
    if self._shift is not None and ready < self._wanted * self._width:
      self._shift.step_out()

  def _do_one(
    self, reader: worker_reader.WorkerReader, size: int, told: _ExtraArgs
  ) -> int:
    self._about_to_do(1)
    given = self._given(reader, 1, size)
    counted, result = self._do_single(size, given, *told)
    if counted:
      self._use(reader, size)
      self._singles.append(result)
    return counted

  def _about_to_do(self, num_steps: int) -> None:
    if self._shift is not None:
      self._shift.num_steps = num_steps

  def _give_back(self, reader: worker_reader.WorkerReader) -> None:
    """Discards batches that came too late; they are read again."""
    reader.is_broken = True
    self._readers.release(reader)

  def _end(self, reader: worker_reader.WorkerReader) -> None:
    self._reader = None
    self.num_steps = len(self._singles)
    self._readers.finished |= reader.finished

  def _is_settled(self, reader: worker_reader.WorkerReader) -> bool:
    """Returns whether steps done before an interruption end the attempt."""
    is_settled = self._end_interrupted(
      lambda number: self._readers.split_progress.record(
        reader.progress_after(number * self._width)
      )
    )
    self._readers.release(reader)
    return is_settled
