"""Readers of a queue's splits, for the workers that a process trains on."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import itertools
import random
import threading
import time
from typing import Any
from typing import Protocol

from absl import logging
import tensorflow as tf

from tfps import errors
from tfps._compat import captured_datasets
from tfps._compat import coordinator as compat
from tfps._compat import writes
from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib
from tfps.input import per_worker
from tfps.input import pipelines as pipelines_lib
from tfps.input import split_progress as split_progress_lib
from tfps.input import worker_reader
from tfps.server import health

_TOKEN_BITS = 62
_INCARNATION_BITS = 48


class Readers(Protocol):
  """Interface of a process to the readers of its workers.

  Attributes:
    split_progress: the progress of the queue's splits.
    until: the epoch at which to stop; no split of it is taken.
    finished: whether all earlier epochs are done.
    are_endless: whether the queue repeats its splits forever.
    element_spec: the type of a batch.
  """

  split_progress: split_progress_lib.SplitProgress
  until: int
  finished: bool
  are_endless: bool
  element_spec: Any

  def warn_is_finished(self, caller: str) -> None:
    """Warns that there was nothing to train on; see `SplitQueue`."""

  def here(self) -> worker_reader.WorkerReader:
    """Returns the reader of the worker whose functions this thread runs."""

  def taking(
    self,
  ) -> contextlib.AbstractContextManager[split_progress_lib.Owners]:
    """Guards the taking of a split; yields which owners are alive."""

  def release(self, reader: worker_reader.WorkerReader) -> None:
    """Lets other workers take the splits of a reader."""

  def check_owners(self) -> None:
    """Finds lost owners; called while no split is free and some are unread."""


class QueueReaders:
  """Base of all readers of a queue; see `Readers`.

  Args:
    pipelines: at least one of them has been traced.
  """

  def __init__(self, pipelines: pipelines_lib.Pipelines) -> None:
    queue = pipelines.queue
    self.split_progress: split_progress_lib.SplitProgress = queue.split_progress
    self.until = split_progress_lib.ENDLESS
    self.finished = False
    self.are_endless: bool = queue.is_endless
    self.element_spec = pipelines.element_spec
    self.warn_is_finished: Callable[[str], None] = queue.warn_is_finished


def new_tokens() -> Iterator[int]:
  """Yields unique tokens with which readers own splits."""
  first = random.SystemRandom().getrandbits(_TOKEN_BITS)
  return itertools.count(first | 1)


class WorkerReaders(QueueReaders, Readers):
  """Readers of a coordinator's workers, all kept in its process.

  Args:
    coordinator: schedules steps on the workers.
    dataset_fn: makes the dataset of a split, on a worker.
  """

  def __init__(
    self, coordinator: Any, dataset_fn: per_worker.DatasetFn
  ) -> None:
    self._coordinator = coordinator
    self._pipelines = pipelines_lib.Pipelines(dataset_fn)
    self._traced: dict[int, worker_reader.Pipeline] = {}
    for worker in range(compat.num_workers(coordinator)):
      self._pipeline(worker)
    coordinator.surviving(self._pipelines.queue.check)
    super().__init__(self._pipelines)
    self._lock = threading.Lock()
    self._taking = threading.Lock()
    self._readers: dict[int, tuple[int, worker_reader.WorkerReader]] = {}
    self._tokens: set[int] = set()  # of readers that still own their splits
    self._new_tokens = new_tokens()

  def here(self) -> worker_reader.WorkerReader:
    spec: Any = tf.DeviceSpec.from_string(writes.current_device())
    worker: int = spec.task
    repairs = compat.num_repairs(self._coordinator)
    with self._lock:
      before, reader = self._readers.get(worker, (repairs, None))
      if reader is not None and not reader.is_broken and before == repairs:
        return reader
      if reader is not None and not reader.is_broken:
        self._tokens.discard(reader.token)
      token = next(self._new_tokens)
      reader = worker_reader.WorkerReader(
        token,
        self.split_progress,
        self._pipeline(worker),
        f'worker:{worker}',
        writes.current_device(),
      )
      self._tokens.add(token)
      self._readers[worker] = repairs, reader
      return reader

  @contextlib.contextmanager
  def taking(self) -> Iterator[split_progress_lib.Owners]:
    # Otherwise the token of a reader that takes its first split concurrently
    # would be missing, and its owner considered dead.
    with self._taking:
      with self._lock:
        tokens = tuple(self._tokens)
      yield split_progress_lib.Owners(tokens, are_alive=True)

  def release(self, reader: worker_reader.WorkerReader) -> None:
    with self._lock:
      self._tokens.discard(reader.token)

  def check_owners(self) -> None:
    repairs = compat.num_repairs(self._coordinator)
    absent = compat.absent_workers(self._coordinator)
    with self._lock:
      for worker, (before, reader) in self._readers.items():
        is_lost = worker in absent or before != repairs
        if is_lost and not reader.is_busy and not reader.is_broken:
          reader.is_broken = True
          self._tokens.discard(reader.token)

  def _pipeline(self, worker: int) -> worker_reader.Pipeline:
    if worker not in self._traced:
      number = max(worker + 1, compat.num_workers(self._coordinator))
      context = tf.distribute.InputContext(
        num_input_pipelines=number,
        input_pipeline_id=worker,
        num_replicas_in_sync=self._coordinator.strategy.num_replicas_in_sync,
      )
      with captured_datasets.sent():
        self._traced[worker] = self._pipelines.trace(context)
    return self._traced[worker]


class OwnReaders(QueueReaders, Readers):
  """Reader of this process, one of several that share the splits.

  Args:
    task: the task of this process.
    addresses: the addresses at which tasks answer health probes.
    dataset_fn: makes the dataset of a split.
    context: the input context of this process.
    num_interruptions: returns how many executions have been interrupted.
  """

  def __init__(
    self,
    task: spec_lib.Task,
    addresses: Mapping[spec_lib.Task, str],
    dataset_fn: per_worker.DatasetFn,
    context: tf.distribute.InputContext,
    num_interruptions: Callable[[], int],
  ) -> None:
    pipelines = pipelines_lib.Pipelines(dataset_fn)
    self._pipeline = pipelines.trace(context)
    queue = pipelines.queue
    super().__init__(pipelines)
    self._check = queue.check
    self._task = task
    self._addresses = addresses
    self._timeout_secs = queue.timeout_secs
    self._num_interruptions = num_interruptions
    status = health.probe(task, addresses[task])
    self._token = _token(task, status.incarnation or 0)
    self._reader: tuple[int, worker_reader.WorkerReader] | None = None
    self._suspects: set[int] = set()
    self._dead: set[int] = set()
    # By split: its owner and its progress, and since when these are the same.
    self._seen: dict[int, tuple[tuple[int, int], float]] = {}

  def here(self) -> worker_reader.WorkerReader:
    number = self._num_interruptions()
    if (
      self._reader is None
      or self._reader[0] != number
      or self._reader[1].is_broken
    ):
      self._check()
      self._dead |= self._predecessors()
      self._reader = (
        number,
        worker_reader.WorkerReader(
          self._token,
          self.split_progress,
          self._pipeline,
          str(self._task),
          f'/job:{self._task.job}/task:{self._task.index}/device:CPU:0',
        ),
      )
    return self._reader[1]

  @contextlib.contextmanager
  def taking(self) -> Iterator[split_progress_lib.Owners]:
    yield split_progress_lib.Owners(tuple(self._dead), are_alive=False)

  def release(self, reader: worker_reader.WorkerReader) -> None:
    """Does nothing: the next reader has the same token and releases them."""

  def check_owners(self) -> None:
    """Waits for a period, then probes the owners of other splits.

    Raises:
      errors.DeadlineError: names the tasks whose splits make no progress.
    """
    time.sleep(timeouts.current().peers_every_secs)
    progress, owners = self.split_progress.read()
    now = time.monotonic()
    others = {}
    for split in owners.nonzero()[0].tolist():
      if owners[split] != self._token:
        others[split] = int(owners[split])
    seen = {}
    for split, owner in others.items():
      state = owner, int(progress[split])
      before, since = self._seen.get(split, (None, now))
      seen[split] = state, since if before == state else now
    self._seen = seen
    silent_secs = {split: now - self._seen[split][1] for split in others}
    self._find_dead(others, silent_secs)
    stuck = {s for s in others if silent_secs[s] > self._timeout_secs}
    if stuck:
      raise self._error(stuck, others)

  def _find_dead(
    self, others: Mapping[int, int], silent_secs: Mapping[int, float]
  ) -> None:
    """Records owners as dead that two probes in a row found gone."""
    gone = {
      token
      for split, token in others.items()
      if self._is_gone(token, silent_secs[split])
    }
    dead = (gone & self._suspects) - self._dead
    for token in dead:
      logging.warning(
        'Other workers take over the splits of %s, which is lost.', _task(token)
      )
    self._dead |= dead
    self._suspects = gone

  def _is_gone(self, token: int, silent_secs: float) -> bool:
    task = _task(token)
    address = self._addresses.get(task)
    if address is None:  # a worker that joined later, or is gone
      return silent_secs > min(
        timeouts.current().unknown_worker_secs, self._timeout_secs
      )
    status = health.probe(task, address)
    if status.state is health.State.HUNG:
      return False
    if status.state is not health.State.ALIVE:
      return True
    return _token(task, status.incarnation or 0) != token

  def _predecessors(self) -> set[int]:
    """Returns the tokens of earlier processes of this task."""
    _, owners = self.split_progress.read()
    return {
      token
      for token in set(owners.tolist()) - {0, self._token}
      if _task(token) == self._task
    }

  def _error(
    self, stuck: set[int], others: Mapping[int, int]
  ) -> errors.DeadlineError:
    names = ', '.join(
      f'{_task(others[split])} with {self._pipeline.splits.name(split)}'
      for split in sorted(stuck)
    )
    return errors.DeadlineError(
      f'After {self._timeout_secs:g} seconds without progress, {self._task} '
      f'still waits for {names}. Check that they are alive; '
      'SplitQueue(timeout_secs=) sets how long to wait.'
    )


def _token(task: spec_lib.Task, incarnation: int) -> int:
  number = 1 if task.job == 'chief' else task.index + 2
  low = incarnation & ((1 << _INCARNATION_BITS) - 1)
  return number << _INCARNATION_BITS | low


def _task(token: int) -> spec_lib.Task:
  number = token >> _INCARNATION_BITS
  if number == 1:
    return spec_lib.CHIEF
  return spec_lib.Task('worker', number - 2)
