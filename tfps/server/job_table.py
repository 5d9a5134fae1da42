"""Table of the tasks of a running job: how fast each is, and what it does."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from typing import Any

from tfps.cluster import spec as spec_lib
from tfps.monitor import families
from tfps.server import health
from tfps.server import mailbox as mailbox_lib
from tfps.server import observation as observation_lib

_ALIVE = 'alive'


@dataclasses.dataclass(frozen=True)
class Row:
  """Facts of a task; None for what is not known.

  Attributes:
    task: its name.
    state: 'alive', or why it does not tell about itself.
    incarnation: the number of its server's life, in hexadecimal.
    steps_per_sec: steps that it does.
    lag: by how many steps the task that has done most is ahead of it.
    bytes_per_sec: bytes that a ps sends and receives, or a worker between
      graphs pulls and pushes.
    memory_bytes: resident memory of its process.
    doing: what it has been doing for longest.
    event: the last loss or return of a task that names it, or that it tells.
  """

  task: str
  state: str
  incarnation: str | None = None
  steps_per_sec: float | None = None
  lag: int | None = None
  bytes_per_sec: float | None = None
  memory_bytes: int | None = None
  doing: str = ''
  event: str = ''

  @property
  def is_alive(self) -> bool:
    """True if the task tells about itself."""
    return self.state == _ALIVE


COLUMNS = tuple(field.name for field in dataclasses.fields(Row))

_Key = tuple[str, str, str]
_Here = Mapping[spec_lib.Task, observation_lib.Observation]


@dataclasses.dataclass(frozen=True)
class View:
  """All that is known of a job at one moment.

  Attributes:
    statuses: the results of probes.
    observed: observations of tasks, or why there is none.
    values: values of counters and gauges with the moment, by name, task and ps.
  """

  statuses: Mapping[spec_lib.Task, health.Status]
  observed: Mapping[spec_lib.Task, observation_lib.Observation | str]
  values: Mapping[_Key, tuple[float, float]]

  @classmethod
  def of(
    cls,
    statuses: Mapping[spec_lib.Task, health.Status],
    observed: Mapping[spec_lib.Task, observation_lib.Observation | str],
  ) -> 'View':
    """Returns the view of what tasks have told."""
    values: dict[_Key, tuple[float, float]] = {}
    for found in _tellers(observed):
      for metric in found.metrics:
        key = _key(metric)
        before, _ = values.get(key, (0.0, 0.0))
        number = metric.get('value')
        if isinstance(number, int | float):  # that of a histogram is none
          values[key] = before + number, found.at
    return cls(statuses, observed, values)

  def rate(self, before: 'View', key: _Key) -> float | None:
    """Returns the increase of a value per second, or None if it is unknown."""
    if key not in self.values or key not in before.values:
      return None
    (old, earlier), (new, now) = before.values[key], self.values[key]
    # The process of a value that decreases has restarted.
    return (
      (new - old) / (now - earlier) if now > earlier and new >= old else None
    )


class JobTable:
  """Observes a job repeatedly.

  Args:
    known: addresses of some of its tasks.
    timeout_secs: how long the answer of a task may take.
    here: returns observations of tasks of this process, which are not asked.
    mailboxes: connections to use; by default each call opens its own.

  Attributes:
    view: all that the last call of `read` has found; None before.
  """

  def __init__(
    self,
    known: Mapping[spec_lib.Task, str],
    *,
    timeout_secs: float,
    here: Callable[[], _Here] = dict,
    mailboxes: mailbox_lib.Mailboxes | None = None,
  ) -> None:
    self._addresses = dict(known)
    self._timeout_secs = timeout_secs
    self._here = here
    self._mailboxes = mailboxes
    self.view: View | None = None

  @property
  def addresses(self) -> Mapping[spec_lib.Task, str]:
    """Addresses of all tasks that are known so far."""
    return self._addresses

  def read(self, moved: Mapping[spec_lib.Task, str] | None = None) -> list[Row]:
    """Observes all tasks; rates are those since the call before.

    Args:
      moved: addresses that have changed since.
    """
    observed, self._addresses = observation_lib.observe_job(
      {**self._addresses, **(moved or {})},
      timeout_secs=self._timeout_secs,
      here=self._here(),
      mailboxes=self._mailboxes,
    )
    statuses = {s.task: s for s in health.probe_all(self._addresses)}
    view = View.of(statuses, observed)
    found = rows(view, self.view or view)
    self.view = view
    return found


def rows(view: View, before: View) -> list[Row]:
  """Returns the row of each task.

  Args:
    view: what is known now.
    before: what was known before, for rates.
  """
  steps = families.STEPS.name
  done = {
    task: number
    for (name, task, _), (number, _) in view.values.items()
    if name == steps
  }
  most = max(done.values(), default=0.0)
  return [
    _row(str(task), found, view, before, most)
    for task, found in sorted(view.observed.items())
  ]


def _row(
  task: str,
  found: observation_lib.Observation | str,
  view: View,
  before: View,
  most_steps: float,
) -> Row:
  status = view.statuses.get(spec_lib.Task.parse(task))
  incarnation = status.incarnation if status else None
  steps_key = (families.STEPS.name, task, '')
  steps = view.values.get(steps_key)
  memory = view.values.get((families.MEMORY.name, task, ''))
  return Row(
    task=task,
    state=found if isinstance(found, str) else _ALIVE,
    incarnation=None if incarnation is None else f'{incarnation:x}',
    steps_per_sec=view.rate(before, steps_key),
    lag=None if steps is None else round(most_steps - steps[0]),
    bytes_per_sec=_bytes_per_sec(task, view, before),
    memory_bytes=None if memory is None else round(memory[0]),
    doing=_doing(task, view),
    event=_event(task, view),
  )


def _bytes_per_sec(task: str, view: View, before: View) -> float | None:
  """Returns the rate of bytes of a ps, or of the task that counts its own."""
  name = families.TRANSFERRED.name
  keys = [
    key
    for key in view.values
    if key[0] == name and task in key[1:] and not key[1].startswith('chief')
  ]
  if task.startswith('ps'):
    keys = [key for key in view.values if key[0] == name and key[2] == task]
  rates = [view.rate(before, key) for key in keys]
  known = [rate for rate in rates if rate is not None]
  return sum(known) if known else None


def _doing(task: str, view: View) -> str:
  """Returns what a task has done for longest, as it or others tell."""
  found = [
    (secs, what)
    for other in _tellers(view.observed)
    for what, thread, secs in other.activities
    if thread == task or (other.task == task and ':' not in thread)
  ]
  return '{1} for {0:.1f} s'.format(*max(found)) if found else ''


def _event(task: str, view: View) -> str:
  events = {found.task: found.last_event for found in _tellers(view.observed)}
  about = [event for event in events.values() if task in event.split()]
  return next(iter(about), events.get(task, ''))


def _tellers(
  observed: Mapping[spec_lib.Task, observation_lib.Observation | str],
) -> Sequence[observation_lib.Observation]:
  return [
    found
    for found in observed.values()
    if isinstance(found, observation_lib.Observation)
  ]


def _key(metric: Mapping[str, Any]) -> _Key:
  labels = metric['labels']
  return metric['name'], labels['task'], labels.get('ps', '')
