"""Attempts at executions of one graph over all workers, with a queue."""

from collections.abc import Callable
from collections.abc import Sequence
import time
from typing import Any

from tfps._utils import threads
from tfps._utils import timeouts
from tfps.input import joint_readers
from tfps.training import queue_attempts


class Attempt(queue_attempts.Interruptible):
  """Does steps on batches of a queue; see `queue_attempts.Attempt`.

  Args:
    readers: the readers of all workers.
    wanted: how many steps to do, if there are enough batches.
    steps: executes them.

  Attributes:
    sat_out: False, as no other process does steps.
  """

  sat_out = False

  def __init__(
    self,
    readers: joint_readers.JointReaders,
    wanted: int,
    steps: queue_attempts.Steps,
  ) -> None:
    super().__init__(wanted, steps)
    self._readers = readers
    self._is_interrupted = False

  def note(self) -> None:
    """Does nothing; see `queue_attempts.Attempt`."""

  def __call__(self, function: Callable[..., Any]) -> Any:
    """Executes the steps; see `queue_attempts.Attempt`."""
    if self._is_interrupted and self._end_interrupted(self._record):
      return self._steps.join(self._singles)
    full = self._steps.num_steps * self._readers.per_worker
    ready = self._readers.gather(self._wanted * self._readers.per_worker)
    self._is_interrupted = True  # unless it ends
    if min(ready) == full:
      result = self._do_all(function, full)
      self.num_steps = self._steps.num_steps
      return self._steps.join([result])
    self._do_singly(ready)
    self.num_steps = len(self._singles)
    if not self.num_steps and not self._readers.finished:
      time.sleep(timeouts.current().poll_secs)
    return self._steps.join(self._singles)

  def _do_all(self, function: Callable[..., Any], full: int) -> Any:
    readers = self._readers
    own = [readers.per_worker] * len(readers.devices)
    given = (readers.buffers(), *readers.table(self._steps.num_steps, own))
    ahead = threads.begin(
      'tfps-ahead',
      lambda: readers.on_each(lambda reader: reader.read_ahead(full)),
    )
    result = self._do_full(
      lambda *told: self._steps.do_whole(function, given, *told)
    )
    readers.use([full] * len(readers.devices))
    readers.add_read_ahead(ahead.result())
    return result

  def _do_singly(self, ready: list[int]) -> None:
    """Does single steps.

    Args:
      ready: by worker, how many batches are buffered.
    """
    while len(self._singles) < self._wanted:
      numbers = _shares(ready, self._readers.per_worker, self._steps.sizes)
      if not any(numbers):
        return
      given = (
        tuple(self._readers.pick(numbers)),
        *self._readers.table(1, numbers),
      )
      _, result = self._do_single(sum(numbers), given)
      self._singles.append(result)
      self._readers.use(numbers)
      ready = [left - n for left, n in zip(ready, numbers, strict=True)]

  def _record(self, num_steps: int) -> None:
    self._readers.record(num_steps * self._readers.per_worker)


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
