"""Progress and owners of a queue's splits, kept on a ps like the model.

State: two int64 for each split. Its progress has the number of finished epochs
in the upper 32 bits, and in the lower ones how many of its batches have been
trained on since. Its owner is the token of the reader that reads it, or 0.

Invariant: progress never decreases (a scatter-max writes it), so late and
repeated writes change nothing; only "at_least_once" sets the lower bits to 0,
when a split is taken.

Workers take splits under a lock of that ps. Progress is written without the
lock, by the executions that apply the steps.
"""

from collections.abc import Iterable
from collections.abc import Sequence
import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from tfps.updates import ps_lock
from tfps.updates import rows as rows_lib

POSITION_BITS = 32
MAX_POSITION = (1 << POSITION_BITS) - 1

_NUMBER = tf.TensorSpec([], tf.int64)
_NUMBERS = tf.TensorSpec([None], tf.int64)

ENDLESS = 1 << 30  # more epochs than any training has


def value(epoch: int, position: int) -> int:
  """Returns a split's progress as one number.

  Args:
    epoch: how many epochs of it are done.
    position: how many of its batches have been trained on since.
  """
  return epoch << POSITION_BITS | position


@dataclasses.dataclass(frozen=True)
class ProgressUpdate:
  """Progress of some splits.

  Attributes:
    splits: their indices.
    values: the progress of each.
  """

  splits: Sequence[int] = ()
  values: Sequence[int] = ()

  def tensors(self) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the splits and their progress as tensors `[n]`."""
    return _numbers(self.splits), _numbers(self.values)


@dataclasses.dataclass(frozen=True)
class Taken:
  """Result of taking a split.

  Attributes:
    split: its index; None if no split is free.
    epoch: how many epochs of it are done.
    position: how many of its batches have been trained on since.
    finished: whether all epochs of all splits are done.
  """

  split: int | None
  epoch: int
  position: int
  finished: bool


@dataclasses.dataclass(frozen=True)
class Owners:
  """Owners of splits that are alive, as one process sees it.

  Attributes:
    tokens: of owners that are alive or dead.
    are_alive: whether these are all owners that are alive; otherwise they are
      dead, and all others alive.
  """

  tokens: Sequence[int]
  are_alive: bool


class SplitProgress:
  """Progress of the splits of one queue.

  Args:
    progress: a variable of shape [splits], int64.
    owners: another one, on the same ps.
    epochs: how many epochs there are.
    seed: shuffles the splits of each epoch; None keeps their order.
    resumes: whether a split that is taken again continues after the batches
      that count; otherwise it is read from its beginning.
  """

  def __init__(
    self,
    progress: Any,
    owners: Any,
    *,
    epochs: int,
    seed: int | None,
    resumes: bool,
  ) -> None:
    self.progress = progress
    self._owners = owners
    self._epochs = epochs
    self._seed = seed
    self._resumes = resumes
    self._take = tf.function(
      self._taking,
      input_signature=[
        *[_NUMBER] * 2,
        *[_NUMBERS] * 4,
        tf.TensorSpec([], tf.bool),
      ],
      autograph=False,
    )
    self._add = tf.function(
      self._adding, input_signature=[_NUMBERS, _NUMBERS], autograph=False
    )

  def take(
    self,
    token: int,
    keep: Iterable[int],
    done: ProgressUpdate,
    owners: Owners,
    *,
    until: int = ENDLESS,
  ) -> Taken:
    """Takes the first free split of the earliest epoch that has one.

    Args:
      token: the owner's.
      keep: the splits that it still reads; it releases all others.
      done: the progress to record before.
      owners: the other owners that are alive; splits of dead ones are free.
      until: the epoch at which to stop; by default the end of the queue.

    Raises:
      tf.errors.OpError: the ps is lost.
    """
    with tf.device(None):  # this process, which outlives workers
      split, progress, finished = self._take(
        tf.constant(token, tf.int64),  # on this process' own device
        tf.constant(min(until, self._epochs), tf.int64),
        _numbers(keep),
        *done.tensors(),
        _numbers(owners.tokens),
        owners.are_alive,
      ).numpy()
    return Taken(
      None if split < 0 else int(split),
      int(progress) >> POSITION_BITS,
      int(progress) & MAX_POSITION,
      bool(finished),
    )

  def trace(self) -> None:
    """Traces all functions, so that none is traced after a fault."""
    self._take.get_concrete_function()
    self._add.get_concrete_function()

  def add(self, splits: tf.Tensor, values: tf.Tensor) -> tf.Operation:
    """Records the progress of splits in a graph; idempotent.

    Args:
      splits: their indices, int64 of shape [n].
      values: the progress of each, likewise.
    """
    with tf.device(self.progress.device):
      return rows_lib.raise_to(self.progress, splits, values)

  def record(self, progress: ProgressUpdate) -> None:
    """Records the progress of splits at once; idempotent.

    Args:
      progress: the progress.

    Raises:
      tf.errors.OpError: the ps is lost.
    """
    with tf.device(None):
      self._add(*progress.tensors())

  def read(self) -> tuple[np.ndarray, np.ndarray]:
    """Returns the progress and the owner of each split."""
    return self.progress.numpy(), self._owners.numpy()

  def last_epoch(self, epoch: int) -> int:
    """Returns the given epoch, or the queue's last one if that is earlier."""
    return min(epoch, self._epochs - 1)

  def first_epoch(self) -> int:
    """Returns the earliest epoch that is not done."""
    return int(np.min(_epochs(self.progress.numpy())))

  def is_finished(self, until: int = ENDLESS) -> bool:
    """Returns whether all epochs before one, or all epochs, are done."""
    return self.first_epoch() >= min(until, self._epochs)

  def _adding(self, splits: tf.Tensor, values: tf.Tensor) -> None:
    self.add(splits, values)

  def _taking(
    self,
    token: tf.Tensor,
    until: tf.Tensor,
    keep: tf.Tensor,
    splits: tf.Tensor,
    values: tf.Tensor,
    tokens: tf.Tensor,
    are_alive: tf.Tensor,
  ) -> tf.Tensor:
    """Returns a split's index or -1, its progress, and whether all are done."""
    result: list[tf.Tensor] = []

    def work(
      token: Any, until: Any, keep: Any, splits: Any, values: Any, *alive: Any
    ) -> Any:
      last = [self.add(splits, values)]
      progress, owners = self.progress.read_value(), self._owners.read_value()
      owners = _without(owners, token, keep, *alive)
      split = self._choose(progress, owners, until)
      mine = tf.one_hot(split, tf.size(progress), True, False, dtype=tf.bool)
      owners = tf.where(mine, token, owners)
      last.append(self._owners.assign(owners, read_value=False))
      begun = tf.reduce_max(tf.where(mine, progress, 0))
      if not self._resumes:
        begun = _epoch_start(begun)
        last.append(self._set(mine, begun))
      finished = tf.reduce_all(_epochs(progress) >= until)
      result.append(tf.stack([split, begun, tf.cast(finished, tf.int64)]))
      return last

    ps_lock.run(
      [
        ps_lock.Job(
          self.progress,
          work,
          (token, until, keep, splits, values, tokens, are_alive),
        )
      ]
    )
    return result[0]

  def _choose(
    self, progress: tf.Tensor, owners: tf.Tensor, until: tf.Tensor
  ) -> tf.Tensor:
    """Returns a free split of the earliest epoch that has one, or -1."""
    epochs = _epochs(progress)
    free = (owners == 0) & (epochs < until)
    first = tf.reduce_min(tf.where(free, epochs, ENDLESS))
    order = tf.range(tf.size(progress, tf.int64))
    if self._seed is not None:
      order = tf.random.experimental.stateless_shuffle(
        order, seed=tf.stack([tf.constant(self._seed, tf.int64), first])
      )
    to_do = tf.gather(free & (epochs == first), order)
    chosen = order[tf.argmax(tf.cast(to_do, tf.int32))]
    return tf.where(tf.reduce_any(to_do), chosen, -1)

  def _set(self, mine: tf.Tensor, begun: tf.Tensor) -> tf.Operation:
    """Sets the progress of one split; others may be written concurrently."""
    return rows_lib.write(self.progress, tf.where(mine)[:, 0], begun)


def _without(
  owners: tf.Tensor,
  token: tf.Tensor,
  keep: tf.Tensor,
  tokens: tf.Tensor,
  are_alive: tf.Tensor,
) -> tf.Tensor:
  """Returns the owners, with 0 for dead ones and for released splits."""
  own = owners == token
  listed = tf.reduce_any(owners[:, None] == tokens[None, :], axis=1)
  number = tf.range(tf.size(owners, tf.int64))
  kept = tf.reduce_any(number[:, None] == keep[None, :], axis=1)
  gone = tf.where(own, ~kept, listed != are_alive)
  return tf.where(gone, tf.zeros_like(owners), owners)


def _epochs(progress: Any) -> Any:
  return progress // (1 << POSITION_BITS)


def _epoch_start(progress: tf.Tensor) -> tf.Tensor:
  """Returns the progress at the beginning of the same epoch."""
  return _epochs(progress) * (1 << POSITION_BITS)


def _numbers(values: Iterable[int]) -> tf.Tensor:
  found = list(values)
  with tf.device(None):  # see `worker_reader._number`
    return tf.constant(found, tf.int64, shape=[len(found)])
