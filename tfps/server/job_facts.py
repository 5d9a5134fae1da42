"""Facts of a running job for its web page, with a history of its rates.

Tasks are asked when somebody wants to know, and once in a while at most: a job
whose page nobody looks at is not asked. The history is that of these readings,
of which the latest are kept.
"""

import atexit
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
import threading
import time
from typing import Any

from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib
from tfps.monitor import families
from tfps.server import health
from tfps.server import job_table
from tfps.server import mailbox as mailbox_lib
from tfps.server import observation as observation_lib

_HOSTED = 'is served by another ps'
_MAX_MOMENTS = 900
_MAX_EVENTS = 100
# Between two readings, for each task, which takes some 20 milliseconds of CPU.
_SECS_PER_TASK = 0.25

Addresses = Mapping[spec_lib.Task, str]


@dataclasses.dataclass(frozen=True)
class Moment:
  """Rates at a moment, since the moment before; None for what is not known.

  Attributes:
    at: the moment, by `time.time`.
    staleness: mean staleness of the updates.
    steps_per_sec: steps of each task that counts any.
    bytes_per_sec: bytes of each ps.
  """

  at: float
  staleness: float | None
  steps_per_sec: dict[str, float | None]
  bytes_per_sec: dict[str, float | None]


@dataclasses.dataclass(frozen=True)
class Event:
  """Loss or return of a task.

  Attributes:
    at: time of the event, by `time.time` of the task that tells it.
    told_by: that task; '' for what the answers of the tasks show.
    text: such as 'lost worker:1'.
  """

  at: float
  told_by: str
  text: str


class JobFacts:
  """Observes a job for the page of its chief.

  Args:
    task: the chief, which is this process.
    addresses: returns the current addresses of tasks.
    here: returns observations of tasks of this process, the chief's included.
    hosted: returns the ps that other ps serve, which tell nothing of their own.
    describe: returns what else the page is to have, by name.
    every_secs: the minimum between two readings; longer for many tasks.
  """

  def __init__(
    self,
    task: spec_lib.Task,
    *,
    addresses: Callable[[], Addresses],
    here: Callable[[], Mapping[spec_lib.Task, observation_lib.Observation]],
    hosted: Callable[[], Collection[spec_lib.Task]],
    describe: Callable[[], Mapping[str, Any]],
    every_secs: float = 2.0,
  ) -> None:
    self._task = task
    self._read_addresses = addresses
    self._hosted = hosted
    self._describe = describe
    self._every_secs = every_secs
    self._mailboxes = mailbox_lib.Mailboxes()
    self._table = job_table.JobTable(
      {},
      timeout_secs=timeouts.current().probe_secs,
      here=here,
      mailboxes=self._mailboxes,
    )
    self._lock = threading.Lock()
    self._next_at = 0.0
    self._pace_secs = every_secs
    self._is_over = False
    self._facts: dict[str, Any] = {}
    self._moments: tuple[Moment, ...] = ()
    self._seen: tuple[Event, ...] = ()
    self._rows: dict[str, job_table.Row] = {}
    self._staleness = (0, 0.0)
    # A process that ends amid calls of TensorFlow may crash.
    atexit.register(self.stop)

  def since(self, at: float) -> dict[str, Any]:
    """Returns facts for JSON, which are read anew if they are old.

    Args:
      at: the time after which the history is wanted.
    """
    # Another call may be waiting for silent tasks.
    if self._lock.acquire(timeout=timeouts.current().call_secs):
      try:
        if not self._is_over and time.monotonic() >= self._next_at:
          self._read()
          self._next_at = time.monotonic() + self._pace_secs
      finally:
        self._lock.release()
    moments = [dataclasses.asdict(m) for m in self._moments if m.at > at]
    return {**self._facts, 'is_over': self._is_over, 'history': moments}

  def stop(self) -> None:
    """Ends the readings, as training is over; stopping twice is harmless."""
    self._is_over = True
    if self._lock.acquire(timeout=timeouts.current().thread_stop_secs):
      self._mailboxes.abandon()
      self._lock.release()
    atexit.unregister(self.stop)

  def _read(self) -> None:
    now = time.time()
    found = self._table.read(self._read_addresses())
    view = self._table.view
    assert view is not None  # as it was read
    rows = {row.task: row for row in self._told_of_hosts(found, view)}
    self._seen = (*self._seen, *_changes(self._rows, rows, now))[-_MAX_EVENTS:]
    self._rows = rows
    self._pace_secs = max(self._every_secs, _SECS_PER_TASK * len(view.statuses))
    own = view.observed.get(self._task)
    metrics = (
      own.metrics if isinstance(own, observation_lib.Observation) else []
    )
    moment = Moment(
      now,
      self._mean_staleness(metrics),
      {t: r.steps_per_sec for t, r in rows.items() if r.lag is not None},
      {t: r.bytes_per_sec for t, r in rows.items() if t.startswith('ps')},
    )
    self._moments = (*self._moments, moment)[-_MAX_MOMENTS:]
    events = sorted((*self._seen, *_told(view)), key=lambda event: event.at)
    self._facts = {
      'task': str(self._task),
      'at': now,
      'every_secs': self._pace_secs,
      'tasks': [self._row(row, view) for row in rows.values()],
      'events': [dataclasses.asdict(e) for e in events[-_MAX_EVENTS:]],
      'staleness': _buckets(metrics),
      'values': dict(_values(metrics)),
      **self._describe(),
    }

  def _told_of_hosts(
    self, rows: Iterable[job_table.Row], view: job_table.View
  ) -> Iterator[job_table.Row]:
    hosted = self._hosted()
    for row in rows:
      task = spec_lib.Task.parse(row.task)
      status = view.statuses.get(task)
      if status and status.state is health.State.ALIVE and task in hosted:
        row = dataclasses.replace(row, state=_HOSTED)
      yield row

  def _row(self, row: job_table.Row, view: job_table.View) -> dict[str, Any]:
    task = spec_lib.Task.parse(row.task)
    found = view.observed[task]
    place = (
      {'host': found.host, 'pid': found.pid}
      if isinstance(found, observation_lib.Observation)
      else {}
    )
    address = self._table.addresses.get(task, '')
    return {**dataclasses.asdict(row), 'address': address, **place}

  def _mean_staleness(self, metrics: list[dict[str, Any]]) -> float | None:
    """Returns the mean of the updates since the call before."""
    metric = _staleness(metrics)
    if metric is None:
      return None
    number, total = self._staleness
    new = sum(count for _, count in metric['buckets'])
    self._staleness = (new, metric['sum'])
    return (metric['sum'] - total) / (new - number) if new > number else None


def _changes(
  before: Mapping[str, job_table.Row],
  rows: Mapping[str, job_table.Row],
  now: float,
) -> Iterator[Event]:
  """Yields how the states of tasks have changed."""
  for task, row in rows.items():
    old = before.get(task)
    if old is None:
      if before:
        yield Event(now, '', f'{task} is new')
    elif old.state != row.state:
      state = 'is alive again' if row.is_alive else row.state
      yield Event(now, '', f'{task} {state}')
    elif None not in (old.incarnation, row.incarnation) and (
      old.incarnation != row.incarnation
    ):
      yield Event(now, '', f'{task} has been started again')


def _told(view: job_table.View) -> Iterator[Event]:
  for found in view.observed.values():
    if isinstance(found, observation_lib.Observation):
      for at, text in found.events:
        yield Event(at, found.task, text)


def _staleness(metrics: list[dict[str, Any]]) -> dict[str, Any] | None:
  name = families.STALENESS.name
  return next((each for each in metrics if each['name'] == name), None)


def _buckets(metrics: list[dict[str, Any]]) -> list[list[float | None]]:
  """Returns upper bounds and numbers of updates by their staleness."""
  metric = _staleness(metrics)
  return [list(pair) for pair in metric['buckets']] if metric else []


def _values(metrics: list[dict[str, Any]]) -> Iterator[tuple[str, Any]]:
  """Yields the global step, and metrics that the step returns, by name."""
  for each in metrics:
    if each['name'] == families.GLOBAL_STEP.name:
      yield 'global step', each['value']
    elif each['name'] == families.STEP_METRIC.name:
      yield each['labels']['name'], each['value']
