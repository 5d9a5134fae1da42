"""What one worker works on: splits, one after another, and batches at hand."""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import dataclasses
from typing import Any

import tensorflow as tf

from tfps import errors
from tfps.input import batch_list
from tfps.input import split_progress as split_progress_lib
from tfps.input import splits as splits_lib

Taking = Callable[
  [], contextlib.AbstractContextManager[split_progress_lib.Owners]
]


@dataclasses.dataclass
class _Run:
  """Batches of a split that follow each other.

  Attributes:
    split: its number.
    epoch: how often it has been done.
    position: the number of the first batch at hand.
    ready: how many are.
    ended: whether nothing follows them.
  """

  split: int
  epoch: int
  position: int
  ready: int = 0
  ended: bool = False

  @property
  def is_empty(self) -> bool:
    """Whether all of the split has been trained on."""
    return self.ended and not self.ready

  def value(self, number: int) -> int:
    """The split's progress after so many batches more."""
    if self.ended and number == self.ready:
      return split_progress_lib.value(self.epoch + 1, 0)
    return split_progress_lib.value(self.epoch, self.position + number)


@dataclasses.dataclass(frozen=True)
class Pipeline:
  """How splits become batches.

  Attributes:
    splits: what there is.
    open: a concrete function of a split, an epoch and a position, which returns
      the dataset of the batches from there on.
    over: gives an iterator over a dataset.
    read: a function of an iterator, a list and a number; see `_batches.read`.
    empty: a function that gives a list without batches.
    pick: a function of a list and a place, which gives the batch that is there.
  """

  splits: splits_lib.Splits
  open: Callable[..., tf.data.Dataset]
  over: Callable[[tf.data.Dataset], Iterator[Any]]
  read: Callable[..., tuple[tf.Tensor, tf.Tensor]]
  empty: Callable[[], tf.Tensor]
  pick: Callable[[tf.Tensor, tf.Tensor], Any]


class WorkerReader:
  """That of one worker, on whose device this has things done.

  Args:
    token: as which it owns splits.
    split_progress: of the splits.
    pipeline: of its own.
    worker: for errors.

  Attributes:
    token: the same.
    is_busy: whether an execution is being made ready, or is under way.
    is_broken: whether one was cut short. Nothing more is to be had then.
    finished: whether all has been done that was to be, when it last looked.
  """

  def __init__(
    self,
    token: int,
    split_progress: split_progress_lib.SplitProgress,
    pipeline: Pipeline,
    worker: str,
  ) -> None:
    self.token = token
    self.is_busy = False
    self.is_broken = False
    self.finished = False
    self._split_progress = split_progress
    self._pipeline = pipeline
    self._worker = worker
    self._runs: list[_Run] = []  # all but the last have ended
    self._iterator: Any = None
    self._batches: Any = None
    self._first = 0  # in the list, that has not been used
    self._has_looked = False

  @property
  def ready(self) -> int:
    """How many batches are at hand."""
    return sum(run.ready for run in self._runs)

  @contextlib.contextmanager
  def busy(self) -> Iterator[None]:
    """In which an execution is made ready and called."""
    self.is_busy = True
    try:
      yield
    finally:
      self.is_busy = False

  @contextlib.contextmanager
  def in_use(self) -> Iterator[None]:
    """In which what fails leaves it broken.

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
    """Has so many batches at hand, if there are; returns how many.

    Args:
      wanted: how many.
      taking: within which a split is taken; tells who is alive.
      until: the epoch of which no split is taken any more.

    Raises:
      tf.errors.OpError: a task is lost.
      ValueError: the dataset of a split does not end.
    """
    while self.ready < wanted:
      if not self._is_reading() and not self._take(taking, until):
        break
      self._read(wanted - self.ready)
    return min(self.ready, wanted)

  def given(
    self, num_steps: int, width: int, *, counts: bool = True
  ) -> batch_list.Given:
    """What an execution gets.

    Args:
      num_steps: how many it is to do.
      width: how many batches each takes.
      counts: whether batches count with it; otherwise they do by `marks`.
    """
    splits, values = self.table(num_steps, width * counts)
    return self._iterator, *self.at_hand(), splits, values

  def at_hand(self) -> tuple[tf.Tensor, tf.Tensor]:
    """A list of batches, and the place of the first that has not been used."""
    return self._batches, _number(self._first)

  def pick(self, number: int) -> list[Any]:
    """The next batches, so many of them."""
    places = range(self._first, self._first + number)
    return [self._pipeline.pick(self._batches, _number(i)) for i in places]

  def marks(self, number: int) -> split_progress_lib.BatchMarks:
    """How far splits are once so many batches have been trained on."""
    found = {}
    for run, used in self._used(number):
      if used or run.is_empty:
        found[run.split] = run.value(used)
    return split_progress_lib.BatchMarks(tuple(found), tuple(found.values()))

  def table(self, num_steps: int, width: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Splits, and how far they are after no step, after one, and so on."""
    splits = [run.split for run in self._runs]
    values = [
      [run.value(used) for run, used in self._used(after * width)]
      for after in range(num_steps + 1)
    ]
    with tf.device(None):  # see `_number`
      return tf.constant(splits, tf.int64), tf.constant(values, tf.int64)

  def use(self, number: int) -> None:
    """To be told once so many batches have been trained on."""
    self._first += number
    for run, used in self._used(number):
      run.position += used
      run.ready -= used
    self._forget_done()

  def read_ahead(self, number: int) -> tuple[tf.Tensor, int, bool]:
    """Reads so many batches of the split more, or to its end.

    Returns:
      What `take_in` is to be told, once all that are at hand have been used.
    """
    batches, found = self._pipeline.read(
      self._iterator, self._pipeline.empty(), _number(number)
    )
    read, ended = found.numpy()
    return batches, int(read), bool(ended)

  def take_in(self, batches: tf.Tensor, number: int, *, ended: bool) -> None:
    """To be told of the batches that it has read meanwhile, and no others."""
    self._batches, self._first = batches, 0
    self._note(number, ended=ended)

  def _used(self, number: int) -> list[tuple[_Run, int]]:
    """How many of the next batches are of which run."""
    found = []
    for run in self._runs:
      used = min(number, run.ready)
      number -= used
      found.append((run, used))
    return found

  def _forget_done(self) -> None:
    """Forgets runs whose end is on the ledger."""
    self._runs = [run for run in self._runs if not run.is_empty]

  def _is_reading(self) -> bool:
    return bool(self._runs) and not self._runs[-1].ended

  def _take(self, taking: Taking, until: int) -> bool:
    """Whether there is another split to read."""
    keep = [run.split for run in self._runs if not run.is_empty]
    with taking() as owners:
      taken = self._split_progress.take(
        self.token, keep, self.marks(0), owners, until=until
      )
    self._forget_done()
    self.finished = taken.finished
    if taken.split is None:
      return False
    self._runs.append(_Run(taken.split, taken.epoch, taken.position))
    place = (taken.split, taken.epoch, taken.position)
    dataset = self._pipeline.open(*map(_number, place))
    self._look_at(dataset)
    self._iterator = self._pipeline.over(dataset)
    return True

  def _look_at(self, dataset: tf.data.Dataset) -> None:
    if not self._has_looked:
      if int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY:
        raise ValueError(
          'dataset_fn: the dataset of a split has no end. Do not repeat() it; '
          'SplitQueue(..., epochs=None) goes over the splits again and again.'
        )
      self._has_looked = True

  def _read(self, wanted: int) -> None:
    if not self.ready:
      self._batches, self._first = self._pipeline.empty(), 0
    self._batches, found = self._pipeline.read(
      self._iterator, self._batches, _number(wanted)
    )
    number, ended = found.numpy()
    self._note(int(number), ended=bool(ended))

  def _note(self, number: int, *, ended: bool) -> None:
    if self._is_reading():  # else the iterator had ended before
      self._runs[-1].ready += number
      self._runs[-1].ended = ended

  def _is_about_input(self, error: BaseException) -> bool:
    if not self._runs:
      return False
    if isinstance(error, tf.errors.DataLossError):
      return True
    return isinstance(error, tf.errors.OpError) and self._name() in str(error)

  def _name(self) -> str:
    return self._pipeline.splits.name(self._runs[-1].split)

  def _unreadable(self, error: BaseException) -> errors.InputError:
    return errors.InputError(
      f'{self._name()} could not be read by {self._worker}: {_reason(error)}.'
    )


def _number(value: int) -> tf.Tensor:
  """A constant of this process, be it for a function on a worker.

  Made on a worker that is frozen, it would hold the interpreter's lock.
  """
  with tf.device(None):
    return tf.constant(value, tf.int64)


def _reason(error: BaseException) -> str:
  """What an error of a function says, without where the function is from."""
  text = str(error).partition('[[{{node')[0]
  return (text.strip().splitlines() or [type(error).__name__])[-1]
