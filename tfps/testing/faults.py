"""Injects faults into the tasks of a `ProcessCluster`.

```
with testing.ProcessCluster(num_workers=2, num_ps=2) as cluster:
  faults = testing.random_faults(cluster, seed=1, until_secs=60)
  with testing.Faults(cluster, faults):
    train()
```

Disks are really filled; see `tfps.testing.chaos.disks`.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import os
import random
import threading
import time

from tfps.cluster import spec as spec_lib
from tfps.testing import process_cluster
from tfps.testing.chaos import disks

# Seconds for which a slow process is stopped, and runs, in turn.
_STOPPED_FOR, _RUNS_FOR = 0.04, 0.01


@dataclasses.dataclass(frozen=True)
class Fault:
  """A fault of a task that lasts for some seconds.

  Attributes:
    kind: one of
      'kill': kills the task, and restarts it after `for_secs`;
      'freeze': stops it, and continues it after `for_secs`;
      'hang': stops it, and restarts it after `for_secs`, as a supervisor does;
      'slow': lets it run for a fifth of the time;
      'cut': drops all packets between it and others (requires `on_hosts`);
      'fill': fills the disk of `directory`.
    task: the task that has the fault.
    at_secs: when it begins, in seconds since `Faults` was entered.
    for_secs: how long it lasts, in seconds.
    other: the task from which 'cut' disconnects it; by default all others.
    directory: on the disk that 'fill' fills, such as a `small_disk`; see
      `full_disk` about its limits.

  Raises:
    ValueError: the kind is unknown, a time is negative, or `directory` is
      missing or superfluous.
  """

  kind: str
  task: spec_lib.Task
  at_secs: float
  for_secs: float
  other: spec_lib.Task | None = None
  directory: str | os.PathLike[str] | None = None

  def __post_init__(self) -> None:
    if self.kind not in KINDS:
      raise ValueError(
        f'There is no fault {self.kind!r}. There are {", ".join(KINDS)}.'
      )
    for name in ('at_secs', 'for_secs'):
      if not getattr(self, name) >= 0:
        raise ValueError(f'{self}: {name} must not be negative.')
    if (self.kind == 'fill') != (self.directory is not None):
      raise ValueError(
        f"{self}: directory is {self.directory!r}. Give one to 'fill', and to "
        'no other.'
      )

  def __str__(self) -> str:
    return f'{self.kind} {self.task} at {self.at_secs:.1f} s'


@dataclasses.dataclass(frozen=True)
class Event:
  """The begin or end of a fault.

  Attributes:
    fault: the fault.
    moment: 'begin' or 'end'.
    at: the time, as `time.time` counts it.
  """

  fault: Fault
  moment: str
  at: float


class Faults:
  """Injects faults at their times, each in a thread; a context manager.

  Leaving waits until faults that have begun end, and cancels the others. A task
  has one fault at a time: a second one waits until the first one ends.

  Args:
    cluster: the tasks' cluster.
    faults: the faults, in any order.

  Attributes:
    events: the begins and ends so far, in order.

  Raises:
    Exception: on leaving, the first error that injecting a fault raised.
  """

  def __init__(
    self, cluster: process_cluster.ProcessCluster, faults: Iterable[Fault]
  ) -> None:
    self._cluster = cluster
    self._faults = sorted(faults, key=lambda fault: fault.at_secs)
    self._locks = {f.task: threading.Lock() for f in self._faults}
    self._stopping = threading.Event()
    self._threads: list[threading.Thread] = []
    self._errors: list[Exception] = []
    self.events: list[Event] = []

  def __enter__(self) -> 'Faults':
    began = time.monotonic()
    for fault in self._faults:
      thread = threading.Thread(
        target=self._happen, args=(fault, began), name=f'tfps-{fault}'
      )
      self._threads.append(thread)
      thread.start()
    return self

  def __exit__(self, exc_type: object, *exc_info: object) -> None:
    self._stopping.set()
    for thread in self._threads:
      thread.join()
    if self._errors and exc_type is None:
      raise self._errors[0]

  def _happen(self, fault: Fault, began: float) -> None:
    if self._stopping.wait(max(0.0, began + fault.at_secs - time.monotonic())):
      return
    with self._locks[fault.task]:
      if self._stopping.is_set():  # while another fault of the task lasted
        return
      try:
        self.events.append(Event(fault, 'begin', time.time()))
        KINDS[fault.kind](self._cluster, fault)
        self.events.append(Event(fault, 'end', time.time()))
      except Exception as error:
        self._errors.append(error)


def random_faults(
  cluster: process_cluster.ProcessCluster,
  *,
  seed: int,
  until_secs: float,
  every_secs: float = 20.0,
  kinds: Sequence[str] = ('kill', 'hang', 'freeze', 'slow'),
  jobs: Sequence[str] = ('ps', 'worker'),
  for_secs: tuple[float, float] = (0.1, 3.0),
  directory: str | os.PathLike[str] | None = None,
) -> list[Fault]:
  """Returns faults at random times, the same ones for the same seed.

  Args:
    cluster: the tasks' cluster.
    seed: the seed of all choices.
    until_secs: the end of the time in which faults begin, in seconds.
    every_secs: the mean of the exponential time between two faults.
    kinds: kinds of faults to choose from.
    jobs: jobs whose tasks have faults.
    for_secs: the least and the greatest duration of a fault.
    directory: where snapshots are saved, for 'fill', whose task is the one that
      saves them.

  Raises:
    ValueError: the cluster has no task of the jobs.
  """
  choices = random.Random(seed)
  tasks = [task for job in jobs for task in cluster.cluster.tasks(job)]
  if not tasks:
    raise ValueError(
      f'random_faults: the cluster has no task of the jobs {jobs}. Give '
      'jobs of its tasks.'
    )
  writer, *_ = [
    t for j in ('chief', 'worker') for t in cluster.cluster.tasks(j)
  ]
  faults = []
  at_secs = choices.expovariate(1 / every_secs)
  while at_secs < until_secs:
    kind, task = choices.choice(kinds), choices.choice(tasks)
    fills = kind == 'fill'
    faults.append(
      Fault(
        kind,
        writer if fills else task,
        at_secs,
        choices.uniform(*for_secs),
        directory=directory if fills else None,
      )
    )
    at_secs += choices.expovariate(1 / every_secs)
  return faults


def _kill(cluster: process_cluster.ProcessCluster, fault: Fault) -> None:
  cluster.kill(fault.task.job, fault.task.index)
  time.sleep(fault.for_secs)
  cluster.start(fault.task.job, fault.task.index)


def _freeze(cluster: process_cluster.ProcessCluster, fault: Fault) -> None:
  cluster.freeze(fault.task.job, fault.task.index)
  time.sleep(fault.for_secs)
  cluster.thaw(fault.task.job, fault.task.index)


def _hang(cluster: process_cluster.ProcessCluster, fault: Fault) -> None:
  cluster.freeze(fault.task.job, fault.task.index)
  time.sleep(fault.for_secs)
  cluster.restart(fault.task.job, fault.task.index)


def _slow(cluster: process_cluster.ProcessCluster, fault: Fault) -> None:
  end = time.monotonic() + fault.for_secs
  while time.monotonic() < end:
    cluster.freeze(fault.task.job, fault.task.index)
    time.sleep(_STOPPED_FOR)
    cluster.thaw(fault.task.job, fault.task.index)
    time.sleep(_RUNS_FOR)


def _cut(cluster: process_cluster.ProcessCluster, fault: Fault) -> None:
  cluster.cut(fault.task.job, fault.task.index, fault.other)
  time.sleep(fault.for_secs)
  cluster.mend(fault.task.job, fault.task.index, fault.other)


def _fill(cluster: process_cluster.ProcessCluster, fault: Fault) -> None:
  assert fault.directory is not None
  with disks.full_disk(fault.directory):
    time.sleep(fault.for_secs)


KINDS: Mapping[str, Callable[[process_cluster.ProcessCluster, Fault], None]] = {
  'kill': _kill,
  'freeze': _freeze,
  'hang': _hang,
  'slow': _slow,
  'cut': _cut,
  'fill': _fill,
}
