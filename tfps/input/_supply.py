"""What training loops take executions from, where there is a queue."""

from collections.abc import Callable

import tensorflow as tf

from tfps import attempts as attempts_lib
from tfps import execution as execution_lib
from tfps.input import _attempts
from tfps.input import _batches
from tfps.input import _feeds
from tfps.updates import meetings


def check(strategy: tf.distribute.Strategy) -> None:
  """Makes sure that workers may do nothing while others do the last splits.

  Raises:
    ValueError: they have to make all updates together, or each of a worker's
      replicas has to have a batch.
  """
  number = strategy.num_replicas_in_sync
  if number > 1:
    raise ValueError(
      f'Each step has {number} replicas on a worker, which need a batch each, '
      'and a SplitQueue hands out batches one by one. Give each worker one '
      'device, or a share without end: tfps.input.shard, and repeat().'
    )
  if meetings.of(strategy) is not None:
    raise ValueError(
      'updates.Sync and BoundedStaleness have workers wait for others, and a '
      'SplitQueue has nothing for some while others are at its end. Give '
      'each worker a share without end: tfps.input.shard, and repeat().'
    )


class Supply:
  """Attempts to do steps on the batches of a queue.

  To be made in the strategy's scope, before a task is lost: it traces.

  Args:
    feeds: where the batches come from.
    trace: traces an execution of a source for a number of steps.
    num_steps: how many steps to do at a time.
    counts: counts what was cut short; None if nothing is known about that.
  """

  def __init__(
    self,
    feeds: _feeds.Feeds,
    trace: Callable[[execution_lib.Source, int], execution_lib.Execution],
    num_steps: int,
    counts: attempts_lib.Counts | None,
  ) -> None:
    self.feeds = feeds
    self._counts = counts
    feeds.ledger.trace()
    spec, add = feeds.element_spec, feeds.ledger.add
    self.full = trace(_batches.Source(spec, add, ahead=num_steps), num_steps)
    self._single = trace(_batches.Source(spec, add, ahead=0), 1)

  @property
  def finished(self) -> bool:
    """Whether all has been done that ever is to be."""
    return self.feeds.finished

  def attempt(self, missing: int) -> _attempts.Attempt:
    """One to do so many steps, or as many as are done at a time."""
    return _attempts.Attempt(
      self.feeds,
      min(missing, self.full.num_steps),
      full=self.full,
      single=self._single,
      counts=self._counts,
    )

  def look_again(self) -> None:
    """Finds out whether all is done, which the loss of a ps may have undone.

    Raises:
      tf.errors.OpError: the ps is lost.
    """
    self.feeds.finished = self.feeds.ledger.is_finished()
