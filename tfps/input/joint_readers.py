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
from typing import Any
from typing import TypeVar

import tensorflow as tf

from tfps._utils import threads
from tfps.input import per_worker as per_worker_lib
from tfps.input import pipelines as pipelines_lib
from tfps.input import readers
from tfps.input import split_progress as split_progress_lib
from tfps.input import worker_reader
from tfps.variables import step_replicas

_Result = TypeVar('_Result')


class JointReaders(readers.QueueReaders):
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
    self._readers = [
      worker_reader.WorkerReader(
        next(new_tokens), self.split_progress, pipeline, f'worker:{i}'
      )
      for i, pipeline in enumerate(traced)
    ]
    tokens = tuple(reader.token for reader in self._readers)
    self._owners = split_progress_lib.Owners(tokens, are_alive=True)

  def gather(self, wanted: int) -> list[int]:
    """Has so many batches at hand on each worker, if there are; how many."""
    found = self.on_each(
      lambda reader: reader.gather(wanted, self._taking, self.until)
    )
    self.finished |= any(reader.finished for reader in self._readers)
    return found

  def on_each(
    self, call: Callable[[worker_reader.WorkerReader], _Result]
  ) -> list[_Result]:
    """Calls a function of each worker's feed, on all workers at once."""

    def begin(reader: worker_reader.WorkerReader, device: str) -> Any:
      def run() -> _Result:
        with tf.device(device), reader.in_use():
          return call(reader)

      return threads.begin('tfps-feed', run)

    begun = [
      begin(reader, device)
      for reader, device in zip(self._readers, self.devices, strict=True)
    ]
    return [future.result() for future in begun]

  def at_hand(self) -> list[tuple[tf.Tensor, tf.Tensor]]:
    """Of each worker, as of a feed."""
    return [reader.at_hand() for reader in self._readers]

  def pick(self, numbers: Sequence[int]) -> list[Any]:
    """The next batches, so many of each worker, which stay where they are.

    They are in the order of the replicas, on whose workers they are as far as
    that can be.
    """
    picked = []
    for reader, device, number in zip(
      self._readers, self.devices, numbers, strict=True
    ):
      with tf.device(device):
        picked.append(reader.pick(number))
    places = [i // self.per_worker for i in range(sum(numbers))]
    found = [picked[i].pop(0) if picked[i] else None for i in places]
    left = iter([batch for own in picked for batch in own])
    return [next(left) if batch is None else batch for batch in found]

  def table(
    self, num_steps: int, numbers: Sequence[int]
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """As of a feed, for steps that take so many batches of each worker."""
    tables = [
      reader.table(num_steps, number)
      for reader, number in zip(self._readers, numbers, strict=True)
    ]
    with tf.device(None):
      splits, values = zip(*tables, strict=True)
      return tf.concat(splits, axis=0), tf.concat(values, axis=1)

  def use(self, numbers: Sequence[int]) -> None:
    """To be told once so many batches of each have been trained on."""
    for reader, number in zip(self._readers, numbers, strict=True):
      reader.use(number)

  def take_in(self, ahead: Sequence[tuple[tf.Tensor, int, bool]]) -> None:
    """To be told of the batches that each has read meanwhile, and no others."""
    for reader, (batches, number, ended) in zip(
      self._readers, ahead, strict=True
    ):
      reader.take_in(batches, number, ended=ended)

  @contextlib.contextmanager
  def _taking(self) -> Iterator[split_progress_lib.Owners]:
    yield self._owners
