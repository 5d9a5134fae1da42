"""Queue of splits that workers take one after another until all are read."""

from collections.abc import Mapping
import dataclasses
from typing import Any

from absl import logging
import numpy as np
import tensorflow as tf

from tfps.input import split_progress as split_progress_lib
from tfps.input import splits as splits_lib
from tfps.input import tracing

AT_LEAST_ONCE = 'at_least_once'
EXACTLY_ONCE = 'exactly_once'

_PS = 0
_SEED = 20_211_013  # for shuffles without one that must be repeatable


@dataclasses.dataclass(frozen=True)
class Count:
  """Number of an epoch's splits in each state."""

  to_do: int
  doing: int
  done: int

  def __str__(self) -> str:
    return f'{self.to_do} to do, {self.doing} doing, {self.done} done'


@dataclasses.dataclass(frozen=True)
class Report:
  """Progress of a queue.

  Attributes:
    epochs: counts of splits by epoch, from 0: of all epochs that are not done,
      and of the last one that is.
    batches: how many batches of unfinished splits have been trained on.
  """

  epochs: Mapping[int, Count]
  batches: int

  def __str__(self) -> str:
    return '\n'.join(f'epoch {i}: {count}' for i, count in self.epochs.items())


class SplitQueue(tf.Module):
  """Queue that gives each split to the next free worker, until all are done.

  A worker takes a split, reads it to its end, and takes another. If a worker is
  lost, the next free worker takes its split. The state of each split, and how
  many of its batches have been trained on, is kept on a ps. It outlives workers
  and the chief, is part of the snapshots of a `Recovery`, is set back with the
  model when a ps is lost, and is saved in the checkpoints of `train`, which
  can be restored with any number of workers.

  A split is done, and a batch counts, once the steps that used it are applied.
  After a fault, batches that do not count yet are read again:

  - 'at_least_once': the whole split is read from its beginning. Its
    preprocessing may be random.
  - 'exactly_once': only the batches that do not count are read, so each counts
    once. Preprocessing must be deterministic: shuffles without a seed get one,
    and parallel transformations keep the order of elements. As batches are
    counted, training that is resumed must make the same ones, of the same size.

  Args:
    splits: `Files`, `Parquet` or `Ranges`.
    epochs: how often to read all splits; None to repeat them forever.
    shuffle_seed: makes the order of splits differ in each epoch; by default
      they are taken in their own order.
    visitation: 'at_least_once' or 'exactly_once'; see above.
    timeout_secs: with `BetweenGraphStrategy`, how many seconds a worker without
      a split waits for other workers whose splits make no progress.

  Raises:
    ValueError: the queue is not made in the scope of a tfps strategy, or
      `epochs` or `visitation` is wrong.
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
    if getattr(extended, 'make_own', None) is None:
      raise ValueError(
        'SplitQueue: make it in the scope of a tfps.ParameterServerStrategy or '
        'a tfps.BetweenGraphStrategy, on whose ps it is kept.'
      )
    self.splits = splits
    self.is_endless = epochs is None
    self.timeout_secs = timeout_secs
    self._exact = visitation == EXACTLY_ONCE
    self._progress = _make(extended, 'progress', [0] * len(splits))
    self._fingerprint = _make(extended, 'kind', [self._identity()])
    self.split_progress = split_progress_lib.SplitProgress(
      self._progress,
      _make(extended, 'owners', [0] * len(splits)),
      epochs=split_progress_lib.ENDLESS if epochs is None else epochs,
      seed=shuffle_seed,
      resumes=self._exact,
    )
    extended.queues = (*extended.queues, self)

  def dataset(self, context: tf.distribute.InputContext) -> tf.data.Dataset:
    """Returns the dataset of one split; for use in a `dataset_fn`.

    Transformations that follow, such as `map`, `shuffle` and `batch`, apply to
    that split alone. Do not `repeat` it.

    Args:
      context: the argument of the `dataset_fn`.

    Returns:
      A dataset of what `splits.read` yields: by default records as scalar
      strings for `Files`, batches of columns for `Parquet`, scalar int64 for
      `Ranges`.

    Raises:
      errors.Error: the caller is not a `dataset_fn` of `train` or `fit`.
      ValueError: the `dataset_fn` also reads from another queue.
    """
    del context  # any worker takes any split
    order = tracing.take(self)
    if self._exact:  # on all workers, whatever their own seeds are
      tf.compat.v1.get_default_graph().seed = _SEED
    return self.splits.read(order.split)

  def epoch(self) -> tf.Tensor:
    """Returns the current split's epoch, from 0; for use in a `dataset_fn`.

    It may serve as a seed: `shuffle(1_000, seed=queue.epoch())`, unless
    TensorFlow's global seed is 0, with which it takes no tensor.

    Returns:
      A scalar int64 tensor.

    Raises:
      errors.Error: as `dataset`.
      ValueError: as `dataset`.
    """
    return tracing.take(self).epoch

  def report(self) -> Report:
    """Returns the number of splits in each state, by epoch."""
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
    """Checks that the progress on the ps is that of these splits.

    Raises:
      ValueError: it was restored from training on other splits.
    """
    found = int(self._fingerprint.numpy()[0])
    if found != self._identity():
      batches = ' in batches of the same size,' * self._exact
      raise ValueError(
        'SplitQueue: the progress that was restored is that of other splits '
        f'than these {len(self.splits)}, of which the first is '
        f'{self.splits.name(0)}. Give the same files or ranges, in folders of '
        f'the same names,{batches} and in the same order, or train in another '
        'directory to start from scratch.'
      )

  def _identity(self) -> int:
    # A position is a number of batches.
    return self.splits.fingerprint(with_batches=self._exact)

  def warn_is_finished(self, caller: str) -> None:
    """Warns that there was nothing to train on.

    Args:
      caller: the name of the method that trains.
    """
    logging.warning(
      '%s: there was nothing to train on: all epochs of the SplitQueue of %d '
      'splits, of which the first is %s, are done, perhaps according to a '
      'checkpoint. Make another queue, or one with more epochs; to train from '
      'scratch, use another directory.',
      caller,
      len(self.splits),
      self.splits.name(0),
    )

  def rest(
    self, dataset: tf.data.Dataset, position: tf.Tensor
  ) -> tf.data.Dataset:
    """Returns the batches of a split that do not count yet.

    Args:
      dataset: the batches of the whole split.
      position: how many of them count, a scalar int64.
    """
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
      f'SplitQueue: epochs={epochs!r} must be 1 or more, or None for no end.'
    )
  if visitation not in (AT_LEAST_ONCE, EXACTLY_ONCE):
    raise ValueError(
      f'SplitQueue: visitation={visitation!r} is neither {AT_LEAST_ONCE!r} nor '
      f'{EXACTLY_ONCE!r}.'
    )
