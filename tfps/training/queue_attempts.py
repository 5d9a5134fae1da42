"""Executions of steps for which there are batches, be they fewer than asked."""

from collections.abc import Callable
import contextlib
import time
from typing import Any
from typing import Protocol

from tfps._utils import timeouts
from tfps.input import readers as readers_lib
from tfps.input import split_progress as split_progress_lib
from tfps.input import worker_reader
from tfps.training import attempts as attempts_lib
from tfps.training import step_log as step_log_lib
from tfps.updates.sync import session as session_lib
from tfps.updates.sync import shifts
from tfps.updates.sync import turnouts

_AGAIN = object()

# What functions get besides batches, of who waits for each other, or of marks.
_Told = tuple[Any, ...]


class Steps(Protocol):
  """How steps are done on batches that are at hand.

  Attributes:
    num_steps: how many are done at once, where there are as many batches.
    sizes: how many batches a step may take, the most first: one for each of its
      replicas, or of some of them where there are fewer batches.
    marks: of executions; None if nothing is known of those that are cut short.
    sync_session: where workers wait for each other; None if they do not.
  """

  num_steps: int
  sizes: tuple[int, ...]
  marks: step_log_lib.StepLog | None
  sync_session: session_lib.SyncSession | None

  def attempt(self) -> attempts_lib.Attempt | None:
    """Says what is to be repeated of an execution that is cut short."""

  def do_all(
    self, function: Callable[..., Any], given: Any, *told: Any
  ) -> tuple[Any, int, bool, int, Any]:
    """Does them at once, and reads batches ahead meanwhile.

    Returns:
      These, how many they are, whether the split has ended, how many steps
      count, and the result.
    """

  def do_whole(self, function: Callable[..., Any], given: Any) -> Any:
    """Does them at once, and reads nothing meanwhile; their result."""

  def do_one(
    self, size: int, given: Any, before: list[Any], *told: Any
  ) -> tuple[int, Any]:
    """Does one step, after those that have been done singly.

    Args:
      size: how many batches it takes.
      given: what the function gets for them.
      before: the results of the other steps.
      *told: what else it gets.

    Returns:
      Whether it counts, as 1 or 0, and its result.
    """

  def join(self, results: list[Any]) -> Any:
    """What single steps amount to."""


class Attempt:
  """Does steps on batches of a queue, and what a loss leaves of them.

  Args:
    readers: where the batches come from.
    wanted: how many steps to do, if there are as many batches.
    steps: how to do them.

  Attributes:
    num_steps: how many it did, once it is done.
    sat_out: whether it did none while others did some that it waited for.
  """

  def __init__(
    self, readers: 'readers_lib.Readers', wanted: int, steps: Steps
  ) -> None:
    self.num_steps = wanted
    self.sat_out = False
    self._readers = readers
    self._wanted = wanted
    self._steps = steps
    self._width = steps.sizes[0]
    self._reader: worker_reader.WorkerReader | None = (
      None  # that it was begun with
    )
    self._execution: attempts_lib.Attempt | None = None
    self._singles: list[Any] = []
    self._task = ''  # where a single step was begun
    self._results: list[Any] = []  # the one, once there is any
    # What counts once others have got what has come of it.
    self._uncounted: list[split_progress_lib.BatchMarks] = []
    self._is_counted_later = False
    self._shift: shifts.QueueParticipation | None = None
    if steps.sync_session is not None:
      self._shift = shifts.QueueParticipation(steps.sync_session)

  def note(self) -> None:
    """To be called once it is scheduled."""
    if self._shift is not None:
      self._shift.note()

  def __call__(self, function: Callable[..., Any]) -> Any:
    """What the execution returns; None if that is not known.

    Args:
      function: does all steps at once.

    Raises:
      errors.InputError: a split cannot be read.
      tf.errors.OpError: a task is lost; to be called again.
      ValueError: the dataset of a split does not end.
    """
    if not self._results:
      self._results.append(self._execute(function))
    if self._shift is not None:
      self._settle(self._shift)
    return self._results[0]

  def _execute(self, function: Callable[..., Any]) -> Any:
    with self._at_work() as told:
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
      self._readers.check_owners()
      time.sleep(timeouts.current().poll_secs)
    return self._steps.join(self._singles)

  def _at_work(self) -> contextlib.AbstractContextManager[_Told]:
    if self._shift is None:
      return contextlib.nullcontext(())
    return self._shift.begun()

  def _agree(self, reader: worker_reader.WorkerReader) -> turnouts.StepDecision:
    """Gathers batches; what to do with them."""
    with reader.in_use():
      ready = reader.gather(
        self._wanted * self._width, self._readers.taking, self._readers.until
      )
    if self._shift is None:
      turnout = turnouts.alone(ready, finished=reader.finished)
    else:
      turnout = self._shift.agree(ready, finished=reader.finished)
    if reader.finished and not (turnout.finished or ready):
      self._readers.until += 1  # others are in the next epoch
    reader.finished = turnout.finished
    self.sat_out = turnout.is_partial and not turnout.number
    self._is_counted_later = turnout.is_partial
    return turnout

  def _settle(self, shift: shifts.QueueParticipation) -> None:
    """Counts what could not before; or gives it back, if it is lost."""
    if shift.settle():
      for marks in self._uncounted:
        self._readers.split_progress.note(marks)
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
      self._uncounted.append(reader.marks(number))
    reader.use(number)

  def _do_all(
    self,
    reader: worker_reader.WorkerReader,
    function: Callable[..., Any],
    told: _Told,
  ) -> Any:
    given = self._given(reader, self._wanted, self._width)
    self._execution = self._steps.attempt()
    if self._execution is None:
      self._about_to_do(self._wanted)
      outcome = self._steps.do_all(function, given, *told)
    else:
      outcome = self._execution(
        lambda *id: self._steps.do_all(function, given, *id),
        *self._execution.args,
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
    self, reader: worker_reader.WorkerReader, ready: int, told: _Told
  ) -> None:
    """Does steps on so many batches; if there are no more, others go ahead."""
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
    self, reader: worker_reader.WorkerReader, size: int, told: _Told
  ) -> int:
    if self._steps.marks is not None:
      self._task = self._steps.marks.task()
    self._about_to_do(1)
    given = self._given(reader, 1, size)
    counted, result = self._steps.do_one(size, given, self._singles, *told)
    self._task = ''
    if counted:
      self._use(reader, size)
      self._singles.append(result)
    return counted

  def _about_to_do(self, num_steps: int) -> None:
    if self._shift is not None:
      self._shift.num_steps = num_steps

  def _give_back(self, reader: worker_reader.WorkerReader) -> None:
    """Has done again what came too late, from where the ledger is."""
    reader.is_broken = True
    self._readers.release(reader)

  def _end(self, reader: worker_reader.WorkerReader) -> None:
    self._reader = None
    self.num_steps = len(self._singles)
    self._readers.finished |= reader.finished

  def _is_settled(self, reader: worker_reader.WorkerReader) -> bool:
    """Whether what was done before it was cut short is good enough."""
    number = len(self._singles)
    if self._execution is not None:
      again = self._execution(lambda *id: _AGAIN, *self._execution.args)
      number = 0 if again is _AGAIN else self._execution.num_steps
      if number:
        self._readers.split_progress.note(reader.marks(number * self._width))
      self._execution = None
    elif self._task and self._steps.marks is not None:
      self._steps.marks.tell(self._task, 1)
    self._readers.release(reader)
    self.num_steps = number
    return number > 0
