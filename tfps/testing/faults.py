"""Lets things happen to the tasks of a `ProcessCluster`.

```
with testing.ProcessCluster(num_workers=2, num_ps=2) as cluster:
  faults = testing.random_faults(cluster, seed=1, until_secs=60)
  with testing.Faults(cluster, faults):
    train()
```

What happens to a disk really does, see `tfps.testing.chaos.disks`.
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

# A slow process is stopped, and runs, for so many seconds in turn.
_STOPPED_FOR, _RUNS_FOR = 0.04, 0.01


@dataclasses.dataclass(frozen=True)
class Fault:
  """Something that happens to a task.

  Attributes:
    kind: 'kill', and start again after `for_secs`; 'freeze', and let go on
      after them; 'hang': freeze, and replace by a fresh start after them, as a
      supervisor does; 'slow': let run a fifth of the time, for so long; 'cut':
      lose all that is sent between it and others, for so long, for which the
      tasks have to be on hosts of their own; 'fill': leave no space on the disk
      that it writes to, for so long.
    task: whom it strikes.
    at_secs: when, counted from the beginning.
    for_secs: for how long.
    other: from whom 'cut' cuts it off; by default from all others.
    directory: whose disk 'fill' fills, such as a `small_disk`; see `full_disk`
      for what it refuses.
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
  """A fault that has begun or ended.

  Attributes:
    fault: which.
    moment: 'begin' or 'end'.
    at: when, by `time.time`.
  """

  fault: Fault
  moment: str
  at: float


class Faults:
  """Has faults happen at their times, each in a thread; a context manager.

  Leaving waits for those that have begun and lets no others begin. A task has
  one fault at a time: another waits for its end.

  Args:
    cluster: whose tasks are struck.
    faults: in any order.

  Attributes:
    events: what has happened so far, in order.
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
  """Faults at random times, the same ones for the same seed.

  Args:
    cluster: whose tasks are struck.
    seed: of all choices.
    until_secs: when to stop.
    every_secs: the mean time between two faults, which is exponential.
    kinds: of faults.
    jobs: whose tasks are struck.
    for_secs: between which lengths, evenly.
    directory: where cuts are kept, for 'fill', which strikes whom writes them.
  """
  choices = random.Random(seed)
  tasks = [task for job in jobs for task in cluster.cluster.tasks(job)]
  if not tasks:
    raise ValueError(f'random_faults: no task is of the jobs {jobs}.')
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
