"""Readers of a queue for steps of one graph over all workers.

A step takes batches from all workers. While others read the last splits, some
workers have none. A step then has no more replicas than there are batches: half
of all replicas, a quarter, and so on. The first replicas execute it; batches of
other workers move to them.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from concurrent import futures
import contextlib
from typing import Any
from typing import TypeVar

import tensorflow as tf

from tfps._compat import captured_datasets
from tfps._utils import threads
from tfps._utils import timeouts
from tfps.input import per_worker as per_worker_lib
from tfps.input import pipelines as pipelines_lib
from tfps.input import readers
from tfps.input import split_progress as split_progress_lib
from tfps.input import worker_reader
from tfps.variables import step_replicas

_Result = TypeVar('_Result')


class JointReaders(readers.QueueReaders):
  """Readers of all workers, of which this process is the only client.

  Args:
    devices: the workers' devices, which hold their batches.
    replicas: the replicas of a step.
    dataset_fn: makes the dataset of a split, on a worker.
    num_interruptions: returns how many executions have been interrupted, after
      which batches are read again; None if training ends then.

  Attributes:
    outlasts: whether training outlasts an interruption.
    devices: the same.
    per_worker: how many batches of a step one worker takes.
  """

  def __init__(
    self,
    devices: Sequence[str],
    replicas: step_replicas.Replicas,
    dataset_fn: per_worker_lib.DatasetFn,
    num_interruptions: Callable[[], int] | None,
  ) -> None:
    pipelines = pipelines_lib.Pipelines(dataset_fn)
    with captured_datasets.sent():
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
    self._traced = traced
    self._new_tokens = readers.new_tokens()
    self.outlasts = num_interruptions is not None
    self._num_interruptions = num_interruptions or (lambda: 0)
    self._begin()

  def _begin(self) -> None:
    """Makes readers; the splits of those before are free for them."""
    self._begun_after = self._num_interruptions()
    self._readers = [
      worker_reader.WorkerReader(
        next(self._new_tokens),
        self.split_progress,
        pipeline,
        f'worker:{i}',
        device,
      )
      for i, (pipeline, device) in enumerate(
        zip(self._traced, self.devices, strict=True)
      )
    ]
    tokens = tuple(reader.token for reader in self._readers)
    self._owners = split_progress_lib.Owners(tokens, are_alive=True)

  def gather(self, wanted: int) -> list[int]:
    """Fills the buffers of all workers.

    Args:
      wanted: how many batches each worker is to have.

    Returns:
      How many of them each worker has; fewer than wanted if no split is free.
    """
    if self._num_interruptions() != self._begun_after:
      self._begin()
    found = self.on_each(
      lambda reader: reader.gather(wanted, self._taking, self.until)
    )
    self.finished |= any(reader.finished for reader in self._readers)
    return found

  def on_each(
    self, call: Callable[[worker_reader.WorkerReader], _Result]
  ) -> list[_Result]:
    """Calls a function with each worker's reader, concurrently.

    Args:
      call: gets a reader; runs on a thread, with the worker's device.

    Returns:
      The results, by worker. If a call fails, the others have ended or are
      lost, so that none is under way while a ps is restored.
    """

    def begin(reader: worker_reader.WorkerReader, device: str) -> Any:
      def run() -> _Result:
        with tf.device(device), reader.in_use():
          return call(reader)

      return threads.begin('tfps-reader', run)

    begun = [
      begin(reader, device)
      for reader, device in zip(self._readers, self.devices, strict=True)
    ]
    ended, left = futures.wait(begun, return_when=futures.FIRST_EXCEPTION)
    if left:
      futures.wait(left, timeouts.current().lost_execution_secs)
      begun = sorted(begun, key=lambda future: future not in ended)
    return [future.result() for future in begun]

  def buffers(self) -> list[tuple[tf.Tensor, tf.Tensor]]:
    """Returns each worker's buffer; see `WorkerReader.buffer`."""
    return [reader.buffer() for reader in self._readers]

  def pick(self, numbers: Sequence[int]) -> list[Any]:
    """Returns the next batches of the workers, without moving them.

    Args:
      numbers: how many batches of each worker.

    Returns:
      The batches in the order of the replicas; as many as possible are on
      their replica's worker.
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
    """Returns the progress of all workers' splits; see `WorkerReader.table`.

    Args:
      num_steps: the number of steps.
      numbers: how many batches of each worker a step takes.
    """
    tables = [
      reader.table(num_steps, number)
      for reader, number in zip(self._readers, numbers, strict=True)
    ]
    with tf.device(None):
      splits, values = zip(*tables, strict=True)
      return tf.concat(splits, axis=0), tf.concat(values, axis=1)

  def record(self, number: int) -> None:
    """Records the progress of splits after so many batches of each worker.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    for reader in self._readers:
      self.split_progress.record(reader.progress_after(number))

  def use(self, numbers: Sequence[int]) -> None:
    """Drops the batches that have been trained on: so many of each worker."""
    for reader, number in zip(self._readers, numbers, strict=True):
      reader.use(number)

  def add_read_ahead(
    self, ahead: Sequence[tuple[tf.Tensor, int, bool]]
  ) -> None:
    """Makes prefetched batches the buffers, whose batches are all used.

    Args:
      ahead: by worker, the results of `WorkerReader.read_ahead`.
    """
    for reader, (batches, number, ended) in zip(
      self._readers, ahead, strict=True
    ):
      reader.add_read_ahead(batches, number, ended=ended)

  @contextlib.contextmanager
  def _taking(self) -> Iterator[split_progress_lib.Owners]:
    yield self._owners
