"""What training loops take executions from, where there is a queue."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfps import attempts as attempts_lib
from tfps import execution as execution_lib
from tfps.input import _attempts
from tfps.input import _batches
from tfps.input import _feeds
from tfps.updates import meetings as meetings_lib


def check(strategy: tf.distribute.Strategy) -> None:
  """Makes sure that workers may do nothing while others do the last splits.

  Raises:
    ValueError: they have to do equally many steps, or each of a worker's
      replicas has to have a batch.
  """
  number = strategy.num_replicas_in_sync
  if number > 1:
    raise ValueError(
      f'Each step has {number} replicas on a worker, which need a batch each, '
      'and a SplitQueue hands out batches one by one. Give each worker one '
      'device, or a share without end: tfps.input.shard, and repeat().'
    )
  meetings = meetings_lib.of(strategy)
  if meetings is not None and getattr(meetings.policy, 'by_host', False):
    raise ValueError(
      f'{meetings.policy}: the workers of a host push their gradients as one, '
      'and a SplitQueue has nothing for some while others are at its end. '
      'Leave out by_host, or give each worker a share without end: '
      'tfps.input.shard, and repeat().'
    )


class Supply:
  """Attempts to do steps on the batches of a queue.

  To be made in the strategy's scope, before a task is lost: it traces.

  Args:
    feeds: where the batches come from.
    trace: traces an execution of a source for a number of steps.
    num_steps: how many steps to do at a time.
    counts: counts what was cut short; None if nothing is known about that.
    meetings: where workers wait for each other; None if they do not.

  Attributes:
    full: does as many.
  """

  def __init__(
    self,
    feeds: _feeds.Feeds,
    trace: Callable[[execution_lib.Source, int], execution_lib.Execution],
    num_steps: int,
    counts: attempts_lib.Counts | None,
    meetings: meetings_lib.Meetings | None,
  ) -> None:
    self._feeds = feeds
    feeds.ledger.trace()
    full, single = sources(feeds, num_steps)
    self.full = trace(full, num_steps)
    self._steps = _Steps(self.full, trace(single, 1), counts, meetings)

  @property
  def finished(self) -> bool:
    """Whether all has been done that ever is to be."""
    return self._feeds.finished

  def attempt(self, missing: int) -> _attempts.Attempt:
    """One to do so many steps, or as many as are done at a time."""
    wanted = min(missing, self.full.num_steps)
    return _attempts.Attempt(self._feeds, wanted, self._steps)

  def look_again(self) -> None:
    """Finds out whether all is done, which the loss of a ps may have undone.

    Raises:
      tf.errors.OpError: the ps is lost.
    """
    self._feeds.finished = self._feeds.ledger.is_finished()


def sources(
  feeds: _feeds.Feeds, num_steps: int
) -> tuple[_batches.Source, _batches.Source]:
  """What executions work on: those of so many steps, and those of one."""
  spec, add = feeds.element_spec, feeds.ledger.add
  return (
    _batches.Source(spec, add, ahead=num_steps),
    _batches.Source(spec, add, ahead=0),
  )


class _Steps:
  """Steps of which the means of metrics, and the bytes, are wanted.

  Args:
    full: does many.
    single: does one.
    counts: counts what was cut short; None if nothing is known about that.
    meetings: where workers wait for each other; None if they do not.
  """

  def __init__(
    self,
    full: execution_lib.Execution,
    single: execution_lib.Execution,
    counts: attempts_lib.Counts | None,
    meetings: meetings_lib.Meetings | None,
  ) -> None:
    self.num_steps = full.num_steps
    self.marks = None if counts is None else counts.marks
    self.meetings = meetings
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

  def do_one(
    self, given: Any, before: list[Any], *told: Any
  ) -> tuple[int, Any]:
    del before
    (vector,) = self._single.function(given, *told)
    *vector, counted = vector.numpy()
    return int(counted), np.array(vector)

  def join(self, results: list[Any]) -> Any:
    """The means of the metrics, and the sums of the bytes; None of none."""
    if not results:
      return None
    stacked = np.stack(results)
    num_metrics = len(self._single.names)
    means = np.mean(stacked[:, :num_metrics], axis=0)
    return np.concatenate([means, np.sum(stacked[:, num_metrics:], axis=0)])
