"""Executions of steps for which there are batches, be they fewer than asked."""

from collections.abc import Callable
import time
from typing import Any

import numpy as np

from tfps import attempts as attempts_lib
from tfps import execution as execution_lib
from tfps.input import _feed
from tfps.input import _feeds

_PAUSE_SECS = 0.05
_AGAIN = object()


class Attempt:
  """Does steps on batches of a queue, and what a loss leaves of them.

  Args:
    feeds: where the batches come from.
    wanted: how many steps to do, if there are as many batches.
    full: does many; reads as many batches ahead.
    single: does one.
    counts: counts what was cut short; None if nothing is known about that.

  Attributes:
    num_steps: how many it did, once it is done.
  """

  def __init__(
    self,
    feeds: '_feeds.Feeds',
    wanted: int,
    *,
    full: execution_lib.Execution,
    single: execution_lib.Execution,
    counts: attempts_lib.Counts | None,
  ) -> None:
    self.num_steps = wanted
    self._feeds = feeds
    self._wanted = wanted
    self._full = full
    self._single = single
    self._counts = counts
    self._feed: _feed.Feed | None = None  # that it was begun with
    self._countable: attempts_lib.Countable | None = None
    self._singles: list[np.ndarray] = []
    self._task = ''  # where a single step was begun

  def __call__(self, function: Callable[..., Any]) -> Any:
    """What the execution returns; None if that is not known.

    Args:
      function: that of the full execution.

    Raises:
      errors.InputError: a split cannot be read.
      tf.errors.OpError: a task is lost; to be called again.
      ValueError: the dataset of a split does not end.
    """
    if self._feed is not None and self._is_settled(self._feed):
      return self._of_singles()
    feed = self._feed = self._feeds.here()
    with feed.in_use():
      ready = feed.gather(self._wanted, self._feeds.taking)
      if ready == self._full.num_steps:
        return self._do_all(feed, function)
      for _ in range(ready):
        self._do_one(feed)
    self._end(feed)
    if not ready and not feed.finished:
      self._feeds.look_for_lost()
      time.sleep(_PAUSE_SECS)
    return self._of_singles()

  def _do_all(self, feed: _feed.Feed, function: Callable[..., Any]) -> Any:
    given = feed.given(self._wanted)
    if self._counts is None:
      batches, vector = function(given)
    else:
      self._countable = attempts_lib.Countable(self._counts, self._full)
      batches, vector = self._countable(
        lambda *id: function(given, *id), *self._countable.args
      )
    *vector, number, ended = vector.numpy()
    feed.use(self._wanted)
    feed.take_in(batches, int(number), ended=bool(ended))
    self._end(feed)
    self.num_steps = self._wanted
    return np.array(vector)

  def _do_one(self, feed: _feed.Feed) -> None:
    if self._counts is not None:
      self._task = self._counts.marks.task()
    vector = self._single.function(feed.given(1)).numpy()
    self._task = ''
    feed.use(1)
    self._singles.append(vector)

  def _end(self, feed: _feed.Feed) -> None:
    self._feed = None
    self.num_steps = len(self._singles)
    self._feeds.finished |= feed.finished

  def _is_settled(self, feed: _feed.Feed) -> bool:
    """Whether what was done before it was cut short is good enough."""
    number = len(self._singles)
    if self._countable is not None:
      again = self._countable(lambda *id: _AGAIN, *self._countable.args)
      number = 0 if again is _AGAIN else self._countable.num_steps
      if number:
        self._feeds.ledger.note(feed.marks(number))
      self._countable = None
    elif self._task and self._counts is not None:
      self._counts.marks.tell(self._task, 1)
    self._feeds.release(feed)
    self.num_steps = number
    return number > 0

  def _of_singles(self) -> np.ndarray | None:
    """The means of the metrics, and the sums of the bytes."""
    if not self._singles:
      return None
    stacked = np.stack(self._singles)
    num_metrics = len(self._single.names)
    means = np.mean(stacked[:, :num_metrics], axis=0)
    return np.concatenate([means, np.sum(stacked[:, num_metrics:], axis=0)])
