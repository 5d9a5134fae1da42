"""Which splits are to do, being done and done: kept on a ps, like the model.

For each split there are two numbers. Its progress is how often it has been
done, in the upper half, and how many of its batches have been trained on since,
in the lower half. It only ever grows, so whoever comes too late, or twice,
changes nothing. Its owner is who is at it, or 0.

What workers take they take under a lock of that ps; what they have done they
add without one, in the executions that do it.
"""

from collections.abc import Iterable
from collections.abc import Sequence
import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from tfps.updates import ps_lock

POSITION_BITS = 32
MAX_POSITION = (1 << POSITION_BITS) - 1

_NUMBER = tf.TensorSpec([], tf.int64)
_NUMBERS = tf.TensorSpec([None], tf.int64)

ENDLESS = 1 << 30  # more epochs than anybody trains


def value(epoch: int, position: int) -> int:
  """The progress of a split that has been done so often, and further so far."""
  return epoch << POSITION_BITS | position


@dataclasses.dataclass(frozen=True)
class BatchMarks:
  """How far splits have come.

  Attributes:
    splits: their numbers.
    values: the progress of each.
  """

  splits: Sequence[int] = ()
  values: Sequence[int] = ()

  def tensors(self) -> tuple[tf.Tensor, tf.Tensor]:
    return _numbers(self.splits), _numbers(self.values)


@dataclasses.dataclass(frozen=True)
class Taken:
  """What somebody who asked for a split has got.

  Attributes:
    split: its number, or None: there is nothing to do now.
    epoch: how often it has been done.
    position: how many of its batches have been trained on since.
    finished: whether all has been done that ever is to be.
  """

  split: int | None
  epoch: int
  position: int
  finished: bool


@dataclasses.dataclass(frozen=True)
class Owners:
  """Who is at splits, as some process sees it.

  Attributes:
    tokens: of some owners.
    are_alive: whether those are all who are alive; otherwise they are dead, and
      the others alive.
  """

  tokens: Sequence[int]
  are_alive: bool


class SplitProgress:
  """Of one queue.

  Args:
    progress: a variable with a number for each split.
    owners: likewise, on the same ps.
    epochs: how often each split is to be done.
    seed: for another order in each epoch; None for that of the splits.
    resumes: whether a split is gone on with where the last owner was;
      otherwise it is begun again.
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
    )
    self._add = tf.function(self._adding, input_signature=[_NUMBERS, _NUMBERS])

  def take(
    self,
    token: int,
    keep: Iterable[int],
    done: BatchMarks,
    owners: Owners,
    *,
    until: int = ENDLESS,
  ) -> Taken:
    """A split for an owner, the first that is to do.

    Args:
      token: of the owner.
      keep: the splits that it still is at; it gives back all others.
      done: how far it has come.
      owners: who else is alive; what the dead were at is to do again.
      until: the epoch before which all is done, if not that of the queue's end.

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
    """Traces all there is to trace."""
    self._take.get_concrete_function()
    self._add.get_concrete_function()

  def add(self, splits: tf.Tensor, values: tf.Tensor) -> tf.Operation:
    """Notes how far splits have come; repeated, it changes nothing."""
    with tf.device(self.progress.device):
      return tf.raw_ops.ResourceScatterMax(
        resource=self.progress.handle, indices=splits, updates=values
      )

  def note(self, marks: BatchMarks) -> None:
    """As `add`, outside of functions.

    Raises:
      tf.errors.OpError: the ps is lost.
    """
    with tf.device(None):
      self._add(*marks.tensors())

  def read(self) -> tuple[np.ndarray, np.ndarray]:
    """The progress and the owner of each split."""
    return self.progress.numpy(), self._owners.numpy()

  def last_epoch(self, epoch: int) -> int:
    """This one, or the last that is to be."""
    return min(epoch, self._epochs - 1)

  def first_epoch(self) -> int:
    """That of the splits that have been done least often."""
    return int(np.min(_epochs(self.progress.numpy())))

  def is_finished(self, until: int = ENDLESS) -> bool:
    """Whether all has been done that is to be before an epoch, or ever."""
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
    """The split or -1, its progress, and whether all is done."""
    result: list[tf.Tensor] = []

    def work(
      token: Any, until: Any, keep: Any, splits: Any, values: Any, *who: Any
    ) -> Any:
      last = [self.add(splits, values)]
      progress, owners = self.progress.read_value(), self._owners.read_value()
      owners = _without(owners, token, keep, *who)
      split = self._choose(progress, owners, until)
      mine = tf.one_hot(split, len(progress), True, False, dtype=tf.bool)
      owners = tf.where(mine, token, owners)
      last.append(self._owners.assign(owners, read_value=False))
      begun = tf.reduce_max(tf.where(mine, progress, 0))
      if not self._resumes:
        begun = _begin(begun)
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
    """A split that nobody is at, of the first epoch that has any; or -1."""
    epochs = _epochs(progress)
    free = (owners == 0) & (epochs < until)
    first = tf.reduce_min(tf.where(free, epochs, ENDLESS))
    order = tf.range(len(progress), dtype=tf.int64)
    if self._seed is not None:
      order = tf.random.experimental.stateless_shuffle(
        order, seed=tf.stack([tf.constant(self._seed, tf.int64), first])
      )
    to_do = tf.gather(free & (epochs == first), order)
    chosen = order[tf.argmax(tf.cast(to_do, tf.int32))]
    return tf.where(tf.reduce_any(to_do), chosen, -1)

  def _set(self, mine: tf.Tensor, begun: tf.Tensor) -> tf.Operation:
    """Sets one row alone: others may be added to meanwhile."""
    return tf.raw_ops.ResourceScatterUpdate(
      resource=self.progress.handle,
      indices=tf.where(mine)[:, 0],
      updates=begun,
    )


def _without(
  owners: tf.Tensor,
  token: tf.Tensor,
  keep: tf.Tensor,
  tokens: tf.Tensor,
  are_alive: tf.Tensor,
) -> tf.Tensor:
  """The owners, without who is dead or has given back a split."""
  own = owners == token
  listed = tf.reduce_any(owners[:, None] == tokens[None, :], axis=1)
  number = tf.range(len(owners), dtype=tf.int64)
  kept = tf.reduce_any(number[:, None] == keep[None, :], axis=1)
  gone = tf.where(own, ~kept, listed != are_alive)
  return tf.where(gone, tf.zeros_like(owners), owners)


def _epochs(progress: Any) -> Any:
  return progress // (1 << POSITION_BITS)


def _begin(progress: tf.Tensor) -> tf.Tensor:
  """That of the beginning of the same epoch."""
  return _epochs(progress) * (1 << POSITION_BITS)


def _numbers(values: Iterable[int]) -> tf.Tensor:
  found = list(values)
  with tf.device(None):  # see `_reader._number`
    return tf.constant(found, tf.int64, shape=[len(found)])
