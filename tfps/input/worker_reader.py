"""Reader of one worker: reads splits one after another into a buffer."""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import dataclasses
from typing import Any

import tensorflow as tf

from tfps import errors
from tfps._compat import error_sources
from tfps._compat import host_functions
from tfps.input import batch_list
from tfps.input import split_progress as split_progress_lib
from tfps.input import splits as splits_lib

Taking = Callable[
  [], contextlib.AbstractContextManager[split_progress_lib.Owners]
]


@dataclasses.dataclass
class _Run:
  """Consecutive batches of one split in the buffer.

  Attributes:
    split: its index.
    epoch: its epoch.
    position: the index in the split of the first buffered batch.
    ready: how many batches are buffered.
    ended: whether the split has no batches after these.
  """

  split: int
  epoch: int
  position: int
  ready: int = 0
  ended: bool = False

  @property
  def is_empty(self) -> bool:
    """True once the whole split has been trained on."""
    return self.ended and not self.ready

  def value(self, number: int) -> int:
    """Returns the split's progress after some more batches."""
    if self.ended and number == self.ready:
      return split_progress_lib.value(self.epoch + 1, 0)
    return split_progress_lib.value(self.epoch, self.position + number)


@dataclasses.dataclass(frozen=True)
class Pipeline:
  """Functions that turn splits into batches.

  Attributes:
    splits: the splits.
    open: a concrete function of a split, an epoch and a position, which returns
      the dataset of the batches from there on.
    over: returns an iterator over a dataset.
    read: a function of an iterator, a list and a number; see `batch_list.read`.
    empty: returns a list without batches.
    pick: returns the batch of a list at an index.
    empty_splits: the splits that gave no batch since the last one that did; of
      all pipelines of a process.
  """

  splits: splits_lib.Splits
  open: Callable[..., tf.data.Dataset]
  over: Callable[[tf.data.Dataset], Iterator[Any]]
  read: Callable[..., tuple[tf.Tensor, tf.Tensor]]
  empty: Callable[[], tf.Tensor]
  pick: Callable[[tf.Tensor, tf.Tensor], Any]
  empty_splits: set[int] = dataclasses.field(default_factory=set)

  def note(self, split: int, *, is_empty: bool) -> None:
    """Notes whether a whole split is without a batch.

    Raises:
      ValueError: all splits are.
    """
    if not is_empty:
      self.empty_splits.clear()
      return
    self.empty_splits.add(split)
    if len(self.empty_splits) == len(self.splits):
      raise self.no_batch_error()

  def no_batch_error(self) -> ValueError:
    """Returns the error that no split has a batch."""
    return ValueError(
      f'dataset_fn: none of the {len(self.splits)} splits has a batch.'
    )


class WorkerReader:
  """Reader of one worker's batches; called with the worker's CPU current.

  Lists of batches cannot leave the CPU. Called elsewhere, functions copy the
  lists that they return to a GPU, which ends the process.

  Args:
    token: identifies it as owner of splits.
    split_progress: the progress of the queue's splits.
    pipeline: the worker's.
    worker: the worker's name, for errors.
    device: the worker's CPU, which is current while the reader is busy.

  Attributes:
    token: the same.
    is_busy: whether an execution is being prepared or running.
    is_broken: whether an execution was interrupted; the reader is not used
      any more then.
    finished: whether all epochs were done when it last tried to take a split.
  """

  def __init__(
    self,
    token: int,
    split_progress: split_progress_lib.SplitProgress,
    pipeline: Pipeline,
    worker: str,
    device: str,
  ) -> None:
    self.token = token
    self.is_busy = False
    self.is_broken = False
    self.finished = False
    self._split_progress = split_progress
    self._pipeline = pipeline
    self._worker = worker
    self._device = device
    self._runs: list[_Run] = []  # all but the last have ended
    self._iterator: Any = None
    self._batches: Any = None
    self._first = 0  # index in the list of the first unused batch
    self._is_checked = False

  @property
  def ready(self) -> int:
    """Number of buffered batches."""
    return sum(run.ready for run in self._runs)

  @contextlib.contextmanager
  def busy(self) -> Iterator[None]:
    """Marks the reader as busy while an execution is prepared and called."""
    self.is_busy = True
    try:
      with tf.device(self._device):
        yield
    finally:
      self.is_busy = False

  @contextlib.contextmanager
  def in_use(self) -> Iterator[None]:
    """Marks the reader as broken if an execution fails.

    Raises:
      errors.InputError: a split cannot be read.
    """
    try:
      yield
    except BaseException as error:
      self.is_broken = True
      if self._is_about_input(error):
        raise self._unreadable(error) from error
      raise

  def gather(self, wanted: int, taking: Taking, until: int) -> int:
    """Fills the buffer, taking splits as needed.

    Args:
      wanted: how many batches to buffer.
      taking: guards the taking of a split; yields which owners are alive.
      until: the epoch at which to stop; no split of it is taken.

    Returns:
      How many of them are buffered; fewer than wanted if no split is free.

    Raises:
      tf.errors.OpError: a task is lost.
      ValueError: the dataset of a split does not end, or no split has a batch.
    """
    while self.ready < wanted:
      if not self._is_reading() and not self._take(taking, until):
        break
      self._read(wanted - self.ready)
    return min(self.ready, wanted)

  def given(
    self, num_steps: int, width: int, *, counts: bool = True
  ) -> batch_list.Inputs:
    """Returns the inputs of an execution; see `batch_list.Source`.

    Args:
      num_steps: how many steps it has.
      width: how many batches a step takes.
      counts: whether the execution records the progress; otherwise the caller
        does, with `progress_after`.
    """
    splits, values = self.table(num_steps, width * counts)
    return self._iterator, *self.buffer(), splits, values

  def buffer(self) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the list of batches, and the index of the first unused one."""
    return self._batches, _number(self._first)

  def pick(self, number: int) -> list[Any]:
    """Returns the next `number` batches."""
    indices = range(self._first, self._first + number)
    return [self._pipeline.pick(self._batches, _number(i)) for i in indices]

  def progress_after(self, number: int) -> split_progress_lib.ProgressUpdate:
    """Returns the splits' progress once `number` batches are trained on."""
    found = {}
    for run, used in self._used(number):
      if used or run.is_empty:
        found[run.split] = run.value(used)
    return split_progress_lib.ProgressUpdate(
      tuple(found), tuple(found.values())
    )

  def table(self, num_steps: int, width: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the progress of the buffered splits after each number of steps.

    Args:
      num_steps: the number of steps.
      width: how many batches a step takes.

    Returns:
      The splits' indices, int64 of shape [splits], and their progress, int64
      of shape [num_steps + 1, splits].
    """
    splits = [run.split for run in self._runs]
    values = [
      [run.value(used) for run, used in self._used(after * width)]
      for after in range(num_steps + 1)
    ]
    with tf.device(None):  # see `_number`
      return tf.constant(splits, tf.int64), tf.constant(values, tf.int64)

  def use(self, number: int) -> None:
    """Drops the next `number` batches, which have been trained on."""
    self._first += number
    for run, used in self._used(number):
      run.position += used
      run.ready -= used
    self._forget_done()

  def read_ahead(self, number: int) -> tuple[tf.Tensor, int, bool]:
    """Reads `number` further batches of the split, or to its end.

    Returns:
      The arguments of `add_read_ahead`: the list, how many batches it has, and
      whether the split has ended.
    """
    batches, found = self._pipeline.read(
      self._iterator, self._pipeline.empty(), _number(number)
    )
    read, ended = found.numpy()
    return batches, int(read), bool(ended)

  def add_read_ahead(
    self, batches: tf.Tensor, number: int, *, ended: bool
  ) -> None:
    """Makes a prefetched list the buffer, whose batches are all used.

    Args:
      batches: the list.
      number: how many batches it has.
      ended: whether the split has ended.
    """
    self._batches, self._first = batches, 0
    self._note(number, ended=ended)

  def _used(self, number: int) -> list[tuple[_Run, int]]:
    """Returns how many of the next `number` batches each run has."""
    found = []
    for run in self._runs:
      used = min(number, run.ready)
      number -= used
      found.append((run, used))
    return found

  def _forget_done(self) -> None:
    """Forgets runs whose end has been recorded."""
    self._runs = [run for run in self._runs if not run.is_empty]

  def _is_reading(self) -> bool:
    return bool(self._runs) and not self._runs[-1].ended

  def _take(self, taking: Taking, until: int) -> bool:
    """Takes a split; returns whether one was free."""
    keep = [run.split for run in self._runs if not run.is_empty]
    with taking() as owners:
      taken = self._split_progress.take(
        self.token, keep, self.progress_after(0), owners, until=until
      )
    self._forget_done()
    self.finished = taken.finished
    if taken.split is None:
      return False
    self._runs.append(_Run(taken.split, taken.epoch, taken.position))
    place = (taken.split, taken.epoch, taken.position)
    dataset = self._pipeline.open(*map(_number, place))
    self._check_finite(dataset)
    self._iterator = self._pipeline.over(dataset)
    return True

  def _check_finite(self, dataset: tf.data.Dataset) -> None:
    if not self._is_checked:
      if int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY:
        raise ValueError(
          'dataset_fn: the dataset of a split has no end. Do not repeat() it; '
          'SplitQueue(..., epochs=None) repeats all splits.'
        )
      self._is_checked = True

  def _read(self, wanted: int) -> None:
    if not self.ready:
      self._batches, self._first = self._pipeline.empty(), 0
    self._batches, found = self._pipeline.read(
      self._iterator, self._batches, _number(wanted)
    )
    number, ended = found.numpy()
    self._note(int(number), ended=bool(ended))

  def _note(self, number: int, *, ended: bool) -> None:
    if self._is_reading():  # otherwise the iterator had already ended
      self._runs[-1].ready += number
      self._runs[-1].ended = ended
      # Of a split that is continued, batches may be missing.
      is_new = not self._runs[-1].position + self._runs[-1].ready - number
      if number or (ended and is_new):
        self._pipeline.note(self._runs[-1].split, is_empty=not number)

  def _is_about_input(self, error: BaseException) -> bool:
    if not self._runs or not isinstance(error, tf.errors.OpError):
      return False
    split = self._runs[-1].split
    is_named = self._pipeline.splits.is_named(split, str(error))
    if isinstance(error, tf.errors.DataLossError) or is_named:
      return True
    is_missing = host_functions.is_missing(error)
    return error_sources.is_of_dataset(error) and not is_missing

  def _name(self) -> str:
    return self._pipeline.splits.name(self._runs[-1].split)

  def _unreadable(self, error: BaseException) -> errors.InputError:
    name = self._name()
    _, _, told = _reason(error).rpartition(f'{name}: ')  # by Python readers
    return errors.InputError(
      f'{name} could not be read by {self._worker}: {told.removesuffix(".")}.'
    )


def _number(value: int) -> tf.Tensor:
  """Returns a constant on this process' own device.

  Creating it on a hung worker would block with the interpreter's lock held.
  """
  with tf.device(None):
    return tf.constant(value, tf.int64)


def _reason(error: BaseException) -> str:
  """Returns the text of an error, without the nodes of the function."""
  text = str(error).partition('[[{{node')[0]
  return (text.strip().splitlines() or [type(error).__name__])[-1]
