"""Steps of one graph, of which each takes batches from all its workers.

Where some workers have none, because others are at the last splits, a step is
of as many replicas as there are batches, or of fewer: of half of all replicas,
of a quarter, and so on. These are the first of them, to which batches of other
workers then go.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import time
from typing import Any
from typing import TypeVar

import tensorflow as tf

from tfps._utils import futures
from tfps.input import per_worker as per_worker_lib
from tfps.input import pipelines as pipelines_lib
from tfps.input import readers
from tfps.input import split_progress as split_progress_lib
from tfps.input import worker_reader
from tfps.training import queue_attempts
from tfps.variables import step_replicas

_Result = TypeVar('_Result')

_PAUSE_SECS = 0.05


class Feeds(readers.OfQueue):
  """Those of all workers, of which this process is the only client.

  Args:
    devices: of the workers, on which their batches are.
    replicas: of a step.
    dataset_fn: makes the dataset of a split, on a worker.

  Attributes:
    devices: the same.
    per_worker: how many of a step's batches are for one of them.
  """

  def __init__(
    self,
    devices: Sequence[str],
    replicas: step_replicas.Replicas,
    dataset_fn: per_worker_lib.DatasetFn,
  ) -> None:
    pipelines = pipelines_lib.Pipelines(dataset_fn)
    traced = [
      pipelines.trace(
        tf.distribute.InputContext(len(devices), i, replicas.per_worker)
      )
      for i in range(len(devices))
    ]
    pipelines.queue.check()
    super().__init__(pipelines)
    self.devices = tuple(devices)
    self.per_worker = replicas.per_worker
    new_tokens = readers.new_tokens()
    self._feeds = [
      worker_reader.Feed(next(new_tokens), self.ledger, pipeline, f'worker:{i}')
      for i, pipeline in enumerate(traced)
    ]
    tokens = tuple(feed.token for feed in self._feeds)
    self._owners = split_progress_lib.Owners(tokens, are_alive=True)

  def gather(self, wanted: int) -> list[int]:
    """Has so many batches at hand on each worker, if there are; how many."""
    found = self.on_each(
      lambda feed: feed.gather(wanted, self._taking, self.until)
    )
    self.finished |= any(feed.finished for feed in self._feeds)
    return found

  def on_each(
    self, call: Callable[[worker_reader.Feed], _Result]
  ) -> list[_Result]:
    """Calls a function of each worker's feed, on all workers at once."""

    def begin(feed: worker_reader.Feed, device: str) -> Any:
      def run() -> _Result:
        with tf.device(device), feed.in_use():
          return call(feed)

      return futures.begin('tfps-feed', run)

    begun = [
      begin(feed, device)
      for feed, device in zip(self._feeds, self.devices, strict=True)
    ]
    return [future.result() for future in begun]

  def at_hand(self) -> list[tuple[tf.Tensor, tf.Tensor]]:
    """Of each worker, as of a feed."""
    return [feed.at_hand() for feed in self._feeds]

  def pick(self, numbers: Sequence[int]) -> list[Any]:
    """The next batches, so many of each worker, which stay where they are.

    They are in the order of the replicas, on whose workers they are as far as
    that can be.
    """
    picked = []
    for feed, device, number in zip(
      self._feeds, self.devices, numbers, strict=True
    ):
      with tf.device(device):
        picked.append(feed.pick(number))
    places = [i // self.per_worker for i in range(sum(numbers))]
    found = [picked[i].pop(0) if picked[i] else None for i in places]
    left = iter([batch for own in picked for batch in own])
    return [next(left) if batch is None else batch for batch in found]

  def table(
    self, num_steps: int, numbers: Sequence[int]
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """As of a feed, for steps that take so many batches of each worker."""
    tables = [
      feed.table(num_steps, number)
      for feed, number in zip(self._feeds, numbers, strict=True)
    ]
    with tf.device(None):
      splits, values = zip(*tables, strict=True)
      return tf.concat(splits, axis=0), tf.concat(values, axis=1)

  def use(self, numbers: Sequence[int]) -> None:
    """To be told once so many batches of each have been trained on."""
    for feed, number in zip(self._feeds, numbers, strict=True):
      feed.use(number)

  def take_in(self, ahead: Sequence[tuple[tf.Tensor, int, bool]]) -> None:
    """To be told of the batches that each has read meanwhile, and no others."""
    for feed, (batches, number, ended) in zip(self._feeds, ahead, strict=True):
      feed.take_in(batches, number, ended=ended)

  @contextlib.contextmanager
  def _taking(self) -> Iterator[split_progress_lib.Owners]:
    yield self._owners


class Attempt:
  """Does steps on batches of a queue; see `_attempts.Attempt`.

  Nothing is left of one that is cut short, for nothing goes on then.

  Args:
    feeds: where the batches come from.
    wanted: how many steps to do, if there are as many batches.
    steps: how to do them.

  Attributes:
    num_steps: how many it did, once it is done.
    sat_out: whether others did some meanwhile; there are no others.
  """

  sat_out = False

  def __init__(
    self, feeds: Feeds, wanted: int, steps: queue_attempts.Steps
  ) -> None:
    self.num_steps = wanted
    self._feeds = feeds
    self._wanted = wanted
    self._steps = steps
    self._results: list[Any] = []

  def note(self) -> None:
    """To be called once it is scheduled."""

  def __call__(self, function: Callable[..., Any]) -> Any:
    """What the execution returns; see `_attempts.Attempt`."""
    full = self._steps.num_steps * self._feeds.per_worker
    ready = self._feeds.gather(self._wanted * self._feeds.per_worker)
    if min(ready) == full:
      self._do_all(function, full)
      self.num_steps = self._steps.num_steps
    else:
      self._do_singly(ready)
      self.num_steps = len(self._results)
    if not self.num_steps and not self._feeds.finished:
      time.sleep(_PAUSE_SECS)
    return self._steps.join(self._results)

  def _do_all(self, function: Callable[..., Any], full: int) -> None:
    feeds = self._feeds
    own = [feeds.per_worker] * len(feeds.devices)
    given = (feeds.at_hand(), *feeds.table(self._steps.num_steps, own))
    ahead = futures.begin(
      'tfps-ahead', lambda: feeds.on_each(lambda feed: feed.read_ahead(full))
    )
    result = self._steps.do_whole(function, given)
    self._results.append(result)
    feeds.use([full] * len(feeds.devices))
    feeds.take_in(ahead.result())

  def _do_singly(self, ready: list[int]) -> None:
    """Does steps on so many batches of each worker."""
    while len(self._results) < self._wanted:
      numbers = _shares(ready, self._feeds.per_worker, self._steps.sizes)
      if not any(numbers):
        return
      given = (
        tuple(self._feeds.pick(numbers)),
        *self._feeds.table(1, numbers),
      )
      _, result = self._steps.do_one(sum(numbers), given, self._results)
      self._results.append(result)
      self._feeds.use(numbers)
      ready = [left - n for left, n in zip(ready, numbers, strict=True)]


def _shares(
  ready: Sequence[int], per_worker: int, sizes: Sequence[int]
) -> list[int]:
  """How many batches a step takes of each worker; most of who has most."""
  most = [min(number, per_worker) for number in ready]
  size = next((size for size in sizes if size <= sum(most)), 0)
  numbers = [0] * len(ready)
  for i in sorted(range(len(ready)), key=lambda i: (-ready[i], i)):
    numbers[i] = min(most[i], size - sum(numbers))
  return numbers
