"""Registry of a process' metrics: counters, gauges and sources.

Counters and gauges are kept here. A source is an object, and a function that
reads the object's values each time that somebody asks. There is one registry
for a process, as for its signal handlers: a task is a process.
"""

import collections
from collections.abc import Callable
from collections.abc import Iterable
import concurrent.futures
import contextlib
import functools
import os
import pathlib
import threading
import time
from typing import Any
import weakref

from absl import logging

from tfps._utils import threads
from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib
from tfps.monitor import activities as activities_lib
from tfps.monitor import families

Read = Callable[[Any], Iterable[families.Sample]]

_Key = tuple[str, str, tuple[str, ...]]
_Started = tuple[str, int, float]
_Event = tuple[float, str]

_NO_TASK = spec_lib.Task('local', 0)
_MAX_EVENTS = 50
_STATM = pathlib.Path('/proc/self/statm')


class UnavailableError(Exception):
  """A source has no values now, as a ps is lost."""


class Registry:
  """Metrics of one process.

  Attributes:
    task: the task of this process.
    is_chief: whether sources that read from ps are used. They would give the
      same values in all processes.
    is_read: whether anybody reads metrics, so that those that cost time in
      steps are worth it.
  """

  def __init__(self) -> None:
    self.task = _NO_TASK
    self.is_chief = True
    self.is_read = False
    self._events: collections.deque[_Event] = collections.deque(
      maxlen=_MAX_EVENTS
    )
    self._started_at = time.time()
    self._lock = threading.Lock()
    # A family is found by its name, whose hash is cheaper.
    self._values: dict[_Key, float] = {}
    self._families: dict[str, families.Family] = {}
    self._sources: dict[str, _Source] = {}
    self._readers: dict[str, _PsReader] = {}
    self.add(families.FAILED_READS, 0)
    # By an object of its own: what, the thread's identifier, and since when.
    self._activities: dict[object, _Started] = {}
    self._in_flight: dict[
      str, Callable[[], Iterable[activities_lib.Activity]]
    ] = {}

  def add(
    self,
    family: families.Family,
    amount: float = 1,
    *labels: str,
    task: str = '',
  ) -> None:
    """Adds to a counter.

    Args:
      family: the counter's.
      amount: how much to add.
      *labels: values of the family's labels.
      task: the task that it is about; by default this process'.
    """
    with self._lock:
      self._families[family.name] = family
      key = (family.name, task, labels)
      self._values[key] = self._values.get(key, 0) + amount

  def set(
    self,
    family: families.Family,
    value: float,
    *labels: str,
    task: str = '',
  ) -> None:
    """Sets a gauge; see `add`."""
    with self._lock:
      self._families[family.name] = family
      self._values[family.name, task, labels] = value

  def count_execution(self, num_steps: int, task: str) -> None:
    """Counts an execution that has ended.

    Args:
      num_steps: how many training steps it has done, at least one.
      task: that has executed it.
    """
    self.add(families.STEPS, num_steps, task=task)
    self.add(families.EXECUTIONS, task=task)

  def timed(
    self, what: str, family: families.Family, *labels: str
  ) -> 'contextlib.AbstractContextManager[None]':
    """Adds the seconds within a context to a counter, and says what is done.

    Args:
      what: as for `doing`.
      family: as for `add`.
      *labels: as for `add`.
    """
    return _Doing(
      self._activities, what, lambda secs: self.add(family, secs, *labels)
    )

  def doing(self, what: str) -> 'contextlib.AbstractContextManager[None]':
    """Says what this thread does or waits for within a context.

    Args:
      what: such as 'waits for ps:0'.
    """
    return _Doing(self._activities, what)

  def activities(self) -> list[activities_lib.Activity]:
    """Returns what threads of this process do or wait for, oldest first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    found = [
      activities_lib.Activity(what, names.get(ident, 'ended'), since)
      for what, ident, since in self._activities.copy().values()
    ]
    with self._lock:
      others = list(self._in_flight.values())
    found += [activity for source in others for activity in source()]
    return sorted(found, key=lambda activity: activity.since)

  def note_event(self, text: str) -> None:
    """Notes the loss, return or move of a task; the latest ones are kept."""
    with self._lock:
      self._events.append((time.time(), text))

  def events(self) -> list[tuple[float, str]]:
    """Returns the latest events with their times, oldest first."""
    with self._lock:
      return list(self._events)

  def offer_activities(
    self, name: str, source: Callable[[], Iterable[activities_lib.Activity]]
  ) -> None:
    """Adds a source of activities, in place of an earlier one of its name."""
    with self._lock:
      self._in_flight[name] = source

  def offer(
    self, name: str, owner: object, read: Read, *, reads_ps: bool = False
  ) -> None:
    """Adds a source, in place of an earlier one of the same name.

    Args:
      name: of the source.
      owner: has the values; kept by a weak reference, and its source is removed
        once it is gone.
      read: gets the owner and returns its values; raises `UnavailableError` or
        nothing.
      reads_ps: whether it reads from ps, and may block if one is lost.
    """
    source = _Source(owner, read)
    with self._lock:
      self._sources.pop(name, None)
      self._readers.pop(name, None)
      if reads_ps:
        self._readers[name] = _PsReader(source)
      else:
        self._sources[name] = source

  def collect(self) -> list[families.Sample]:
    """Returns all values, those of a family together.

    What is read from ps is missing if they do not answer in time.
    """
    with self._lock:
      for kept in (self._sources, self._readers):
        for name in [n for n, source in kept.items() if source.is_gone]:
          del kept[name]
      sources = list(self._sources.values())
      readers = list(self._readers.values()) if self.is_chief else []
    samples = [sample for source in sources for sample in source.read() or ()]
    deadline = time.monotonic() + timeouts.current().probe_secs
    for reader in readers:
      reader.begin()
    for reader in readers:
      found = reader.end(deadline - time.monotonic())
      if found is None:
        self.add(families.FAILED_READS)
      samples += found or []
    with self._lock:
      samples += [
        families.Sample(self._families[name], value, task, labels)
        for (name, task, labels), value in self._values.items()
      ]
    samples += self._of_process()
    return _by_family(samples, str(self.task))

  def _of_process(self) -> list[families.Sample]:
    samples = [
      families.Sample(families.START, self._started_at),
      families.Sample(families.CPU, time.process_time()),
    ]
    if _STATM.exists():
      pages = int(_STATM.read_text().split()[1])
      size = pages * os.sysconf('SC_PAGE_SIZE')
      samples.append(families.Sample(families.MEMORY, size))
    return samples


class _Doing:
  """Context of an activity.

  A step may enter several: it is no generator, and makes what readers get only
  when they ask.

  Args:
    activities: those of the process.
    what: the activity.
    note: called with its seconds; None to do nothing.
  """

  __slots__ = ('_activities', '_note', '_started')

  def __init__(
    self,
    activities: dict[object, _Started],
    what: str,
    note: Callable[[float], object] | None = None,
  ) -> None:
    self._activities = activities
    self._note = note
    self._started: _Started = (what, threading.get_ident(), time.monotonic())

  def __enter__(self) -> None:
    self._activities[self] = self._started

  def __exit__(self, *exc_info: object) -> None:
    del self._activities[self]
    if self._note is not None:
      self._note(time.monotonic() - self._started[2])


class _Source:
  """Values of an object."""

  def __init__(self, owner: object, read: Read) -> None:
    self._owner = weakref.ref(owner)
    self._read = read

  @property
  def is_gone(self) -> bool:
    """True once the object no longer exists."""
    return self._owner() is None

  def read(self) -> list[families.Sample] | None:
    """Returns the values, or None if there are none now."""
    owner = self._owner()
    try:
      return None if owner is None else list(self._read(owner))
    except UnavailableError:
      return None
    except Exception:  # the thread that asks may be one that training needs
      logging.exception('Metrics could not be read.')
      return None


class _PsReader:
  """Reads a source in threads, one at a time, which may be left behind."""

  def __init__(self, source: _Source) -> None:
    self._source = source
    self._lock = threading.Lock()
    self._under_way: (
      concurrent.futures.Future[list[families.Sample] | None] | None
    ) = None

  @property
  def is_gone(self) -> bool:
    """True once the object that is read no longer exists."""
    return self._source.is_gone

  def begin(self) -> None:
    """Begins to read, unless an earlier call has not ended."""
    with self._lock:
      if self._under_way is None or self._under_way.done():
        self._under_way = threads.begin('tfps-metrics', self._source.read)

  def end(self, timeout_secs: float) -> list[families.Sample] | None:
    """Returns the values, or None if there are none in time."""
    future = self._under_way
    assert future is not None  # as `begin` comes first
    if not threads.is_done(future, max(0.0, timeout_secs)):
      return None
    return future.result()


@functools.cache
def of_process() -> Registry:
  """Returns this process' registry."""
  return Registry()


def _by_family(
  samples: Iterable[families.Sample], task: str
) -> list[families.Sample]:
  """Returns samples ordered by family; each has its task."""
  found: dict[str, list[families.Sample]] = {}
  for sample in samples:
    about = sample.task or task
    found.setdefault(sample.family.name, []).append(
      families.Sample(sample.family, sample.value, about, sample.labels)
    )
  return [sample for name in sorted(found) for sample in found[name]]
