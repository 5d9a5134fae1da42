"""Splits that workers take one after another until all have been read."""

from collections.abc import Mapping
import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from tfps.input import split_progress as split_progress_lib
from tfps.input import splits as splits_lib
from tfps.input import tracing

AT_LEAST_ONCE = 'at_least_once'
EXACTLY_ONCE = 'exactly_once'

_PS = 0
_SEED = 20_211_013  # for shuffles that are to be repeated, and have none


@dataclasses.dataclass(frozen=True)
class Count:
  """How many splits of an epoch are in which state."""

  to_do: int
  doing: int
  done: int

  def __str__(self) -> str:
    return f'{self.to_do} to do, {self.doing} doing, {self.done} done'


@dataclasses.dataclass(frozen=True)
class Report:
  """How far a queue has come.

  Attributes:
    epochs: by their numbers, from 0, those that are not over, and the last that
      is.
    batches: of the splits that are not done, how many have been trained on.
  """

  epochs: Mapping[int, Count]
  batches: int

  def __str__(self) -> str:
    return '\n'.join(f'epoch {i}: {count}' for i, count in self.epochs.items())


class SplitQueue(tf.Module):
  """Shares out splits to whichever worker is next, until all are done.

  A worker takes a split, reads it to its end, and takes another; what a worker
  that is lost was at is taken by the next. Which splits are to do, being done
  and done, and how many batches of each have been trained on, is kept on a ps.
  There it outlasts workers and the chief, is part of a `Recovery`'s cuts, goes
  back with the model where a ps is lost, and is saved in the checkpoints of
  `train`, to be restored with any number of workers.

  A split is done, and a batch counts, once the steps that used it are applied.
  After a fault, what is not yet counted is read again:

  - 'at_least_once': the whole split, from its beginning. What is done to it may
    be random.
  - 'exactly_once': the batches that are not counted. So each counts once. All
    that is done to a split has to give the same batches each time: shuffles
    without a seed are given one, and parallel ones keep their order.

  Args:
    splits: `Files` or `Ranges`.
    epochs: how often to go over them; None for ever.
    shuffle_seed: for another order of the splits in each epoch; by default they
      keep theirs.
    visitation: see above.
    timeout_secs: between graphs, how long a worker that has nothing left waits
      for others whose splits make no progress.

  Raises:
    ValueError: it is not made in the scope of one of our strategies, or an
      argument is wrong.
  """

  def __init__(
    self,
    splits: splits_lib.Splits,
    *,
    epochs: int | None = 1,
    shuffle_seed: int | None = None,
    visitation: str = AT_LEAST_ONCE,
    timeout_secs: float = 600.0,
  ) -> None:
    super().__init__(name='splits')
    _check(epochs, visitation)
    extended = tf.distribute.get_strategy().extended
    if not hasattr(extended, 'make_own'):
      raise ValueError(
        'SplitQueue: make it in the scope of a tfps.ParameterServerStrategy or '
        'a tfps.BetweenGraphStrategy, on whose ps it is kept.'
      )
    self.splits = splits
    self.is_endless = epochs is None
    self.timeout_secs = timeout_secs
    self._exact = visitation == EXACTLY_ONCE
    self._progress = _make(extended, 'progress', [0] * len(splits))
    self._fingerprint = _make(extended, 'kind', [splits.fingerprint()])
    self.split_progress = split_progress_lib.SplitProgress(
      self._progress,
      _make(extended, 'owners', [0] * len(splits)),
      epochs=split_progress_lib.ENDLESS if epochs is None else epochs,
      seed=shuffle_seed,
      resumes=self._exact,
    )
    extended.queues = (*extended.queues, self)

  def dataset(self, context: tf.distribute.InputContext) -> tf.data.Dataset:
    """What is in one split, in the function that makes a worker's dataset.

    All that follows, such as `map`, `shuffle` and `batch`, is for that split
    alone. Do not `repeat` it.

    Args:
      context: what the function was given.

    Raises:
      ValueError: it is called elsewhere, or by a function that has called it
        for another queue.
    """
    del context  # any worker takes any split
    order = tracing.take(self)
    if self._exact:  # on all workers, whatever their own seeds are
      tf.compat.v1.get_default_graph().seed = _SEED
    return self.splits.read(order.split)

  def epoch(self) -> tf.Tensor:
    """How often the split has been read before; as `dataset`.

    For example as a seed: `shuffle(1_000, seed=queue.epoch())`.
    """
    return tracing.take(self).epoch

  def report(self) -> Report:
    """How many splits are to do, being done and done, by epoch."""
    progress, owners = self.split_progress.read()
    epochs = progress >> split_progress_lib.POSITION_BITS
    counts = {}
    last = self.split_progress.last_epoch(int(epochs.max()))
    for epoch in range(max(0, int(epochs.min()) - 1), last + 1):
      done = int(np.sum(epochs > epoch))
      doing = int(np.sum((epochs == epoch) & (owners != 0)))
      counts[epoch] = Count(len(epochs) - done - doing, doing, done)
    batches = int(np.sum(progress & split_progress_lib.MAX_POSITION))
    return Report(counts, batches)

  def check(self) -> None:
    """Makes sure that what is on the ps is about these splits.

    Raises:
      ValueError: it is about others.
    """
    found = int(self._fingerprint.numpy()[0])
    if found != self.splits.fingerprint():
      raise ValueError(
        f'SplitQueue: the progress that was restored is that of other splits '
        f'than these {len(self.splits)}, of which the first is '
        f'{self.splits.name(0)}. Give the same files or ranges, in the same '
        'order, or train in another directory to begin afresh.'
      )

  def rest(
    self, dataset: tf.data.Dataset, position: tf.Tensor
  ) -> tf.data.Dataset:
    """The batches of a split from a position on."""
    if self._exact:
      options = tf.data.Options()
      options.deterministic = True
      dataset = dataset.with_options(options).skip(position)
    return dataset.prefetch(tf.data.AUTOTUNE)


def _make(extended: Any, name: str, value: list[int]) -> Any:
  return extended.make_own(
    _PS, f'tfps/splits/{name}', tf.constant(value, tf.int64)
  )


def _check(epochs: int | None, visitation: str) -> None:
  if epochs is not None and not 0 < epochs < split_progress_lib.ENDLESS:
    raise ValueError(
      f'SplitQueue: epochs={epochs!r} must be 1 or more, or None for ever.'
    )
  if visitation not in (AT_LEAST_ONCE, EXACTLY_ONCE):
    raise ValueError(
      f'SplitQueue: visitation={visitation!r} is neither {AT_LEAST_ONCE!r} nor '
      f'{EXACTLY_ONCE!r}.'
    )
