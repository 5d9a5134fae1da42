"""Attempts at executions of one graph over all workers, with a queue."""

from collections.abc import Callable
from collections.abc import Sequence
import time
from typing import Any

from tfps._utils import threads
from tfps._utils import timeouts
from tfps.input import joint_readers
from tfps.training import queue_attempts


class Attempt:
  """Does steps on batches of a queue; see `queue_attempts.Attempt`.

  It is never called again: training ends when a worker is lost.

  Args:
    readers: the readers of all workers.
    wanted: how many steps to do, if there are enough batches.
    steps: executes them.

  Attributes:
    num_steps: how many steps were done, once it has ended.
    sat_out: False, as no other process does steps.
  """

  sat_out = False

  def __init__(
    self,
    readers: joint_readers.JointReaders,
    wanted: int,
    steps: queue_attempts.Steps,
  ) -> None:
    self.num_steps = wanted
    self._readers = readers
    self._wanted = wanted
    self._steps = steps
    self._results: list[Any] = []

  def note(self) -> None:
    """Does nothing; see `queue_attempts.Attempt`."""

  def __call__(self, function: Callable[..., Any]) -> Any:
    """Executes the steps; see `queue_attempts.Attempt`."""
    full = self._steps.num_steps * self._readers.per_worker
    ready = self._readers.gather(self._wanted * self._readers.per_worker)
    if min(ready) == full:
      self._do_all(function, full)
      self.num_steps = self._steps.num_steps
    else:
      self._do_singly(ready)
      self.num_steps = len(self._results)
    if not self.num_steps and not self._readers.finished:
      time.sleep(timeouts.current().poll_secs)
    return self._steps.join(self._results)

  def _do_all(self, function: Callable[..., Any], full: int) -> None:
    readers = self._readers
    own = [readers.per_worker] * len(readers.devices)
    given = (readers.buffers(), *readers.table(self._steps.num_steps, own))
    ahead = threads.begin(
      'tfps-ahead',
      lambda: readers.on_each(lambda reader: reader.read_ahead(full)),
    )
    result = self._steps.do_whole(function, given)
    self._results.append(result)
    readers.use([full] * len(readers.devices))
    readers.add_read_ahead(ahead.result())

  def _do_singly(self, ready: list[int]) -> None:
    """Does single steps.

    Args:
      ready: by worker, how many batches are buffered.
    """
    while len(self._results) < self._wanted:
      numbers = _shares(ready, self._readers.per_worker, self._steps.sizes)
      if not any(numbers):
        return
      given = (
        tuple(self._readers.pick(numbers)),
        *self._readers.table(1, numbers),
      )
      _, result = self._steps.do_one(sum(numbers), given, self._results)
      self._results.append(result)
      self._readers.use(numbers)
      ready = [left - n for left, n in zip(ready, numbers, strict=True)]


def _shares(
  ready: Sequence[int], per_worker: int, sizes: Sequence[int]
) -> list[int]:
  """Returns how many batches a step takes of each worker.

  Args:
    ready: by worker, how many batches are buffered.
    per_worker: how many a worker gives at most.
    sizes: how many batches a step may take, in descending order.
  """
  most = [min(number, per_worker) for number in ready]
  size = next((size for size in sizes if size <= sum(most)), 0)
  numbers = [0] * len(ready)
  for i in sorted(range(len(ready)), key=lambda i: (-ready[i], i)):
    numbers[i] = min(most[i], size - sum(numbers))
  return numbers
