"""Timeline of all tasks of a job, as a trace that Chrome and Perfetto show.

Each task is a process of the trace. A tensor that one task sends to another is
an arrow. The clocks of different machines are brought together by these: no
tensor arrives before it was sent, in either direction, so half the difference
between the least delays there and back is by how much one clock is ahead, as in
D. Mills, "Internet Time Synchronization: The Network Time Protocol" (1991).
"""

import collections
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import math
import re
from typing import Any

# Records of the profiler about thread pools, which would hide all others.
_NOISE = re.compile(r'ThreadpoolListener::')
_NODE = re.compile(r'(?P<name>.+)/_(?P<number>\d+)')
_TASK = re.compile(r'/job:(\w+)/replica:\d+/task:(\d+)/')
_SENT = ':_Send'
_RUN = 'ExecutorState::Process'
# Operations that last as long as those within them.
CALLS = {'StatefulPartitionedCall', 'PartitionedCall', 'RemoteCall', 'While'}
# The end of an operation that waits without a thread.
DONE = 'ExecutorState::ProcessAsync::Done'


@dataclasses.dataclass(frozen=True)
class Event:
  """Something that a thread did.

  Attributes:
    thread: the number of the thread, in its process.
    name: such as the operation's and its type.
    start_ns: when it began, as Unix time by the clock of its machine.
    duration_ns: how long it took.
    args: facts about it.
  """

  thread: int
  name: str
  start_ns: float
  duration_ns: float
  args: Mapping[str, Any]

  @property
  def end_ns(self) -> float:
    """When it ended, likewise."""
    return self.start_ns + self.duration_ns


@dataclasses.dataclass(frozen=True)
class Profile:
  """All that a process did in some time.

  Attributes:
    host: the name of its machine.
    threads: names of threads by number.
    events: in no order.
    xspace: the same as TensorBoard reads it, a serialized `XSpace`.
  """

  host: str
  threads: Mapping[int, str]
  events: Sequence[Event]
  xspace: bytes = b''


@dataclasses.dataclass(frozen=True)
class Transfer:
  """A tensor that a task sent to another.

  Attributes:
    sender: the task that sent it.
    receiver: the task that received it.
    sent: the event of the sender.
    received: the event of the receiver.
  """

  sender: str
  receiver: str
  sent: Event
  received: Event


def within_runs(profile: Profile) -> Iterator[tuple[Event, Event | None]]:
  """Yields events, each with the run of a step in whose thread it takes place.

  Operations are within such a run.

  Args:
    profile: of a task.
  """
  runs: dict[int, list[Event]] = collections.defaultdict(list)
  for event in sorted(profile.events, key=_outer_first):
    run = runs[event.thread]
    while run and run[-1].end_ns < event.start_ns:
      run.pop()
    if event.name == _RUN:
      run.append(event)
    else:
      yield event, run[-1] if run else None


def transfers(
  profiles: Mapping[str, Profile],
) -> list[Transfer]:
  """Returns the tensors that tasks sent each other.

  Of an execution that began before the profiles or ended after them, it is not
  known which of the tensors that were sent is which of those received; it has
  no transfers here.

  Args:
    profiles: of tasks, by their names.
  """
  sent: dict[Any, list[tuple[str, Event]]] = {}
  received: dict[Any, list[Event]] = {}
  for task, profile in profiles.items():
    for event, run in within_runs(profile):
      if event.name.endswith(_SENT):
        node = _NODE.fullmatch(event.name.removesuffix(_SENT))
        to = _TASK.findall(str(event.args.get('key', '')))
        step = run.args.get('id') if run else None
        if node and len(to) == 2 and step is not None:
          key = (':'.join(to[1]), step, node['name'], int(node['number']) + 1)
          sent.setdefault(key, []).append((task, event))
      elif event.name == DONE and event.args.get('kernel_type') == '_Recv':
        node = _NODE.fullmatch(str(event.args.get('name', '')))
        if node:
          key = (task, event.args['step_id'], node['name'], int(node['number']))
          received.setdefault(key, []).append(event)
  return [
    Transfer(sender, key[0], first, last)
    for key, events in sent.items()
    if len(events) == len(received.get(key, ()))
    for (sender, first), last in zip(events, received[key], strict=True)
  ]


def clocks(
  profiles: Mapping[str, Profile], sent: Iterable[Transfer]
) -> dict[str, float]:
  """Returns by how many nanoseconds the clock of each machine is ahead.

  Args:
    profiles: of tasks, by their names; the clock of the first one's machine
      is not ahead.
    sent: the tensors between them.

  Returns:
    The difference by the name of a machine; none of those that are not known.
  """
  hosts = {task: profile.host for task, profile in profiles.items()}
  least: dict[tuple[str, str], float] = {}
  for each in sent:
    way = hosts[each.sender], hosts[each.receiver]
    delay = each.received.end_ns - each.sent.start_ns
    least[way] = min(delay, least.get(way, math.inf))
  ahead = {next(iter(hosts.values())): 0.0} if hosts else {}
  to_do = list(ahead)
  while to_do:
    known = to_do.pop()
    for other in set(hosts.values()) - set(ahead):
      if (known, other) in least and (other, known) in least:
        there, back = least[known, other], least[other, known]
        ahead[other] = ahead[known] + (there - back) / 2
        to_do.append(other)
  return ahead


def clocks_of_tasks(
  profiles: Mapping[str, Profile], sent: Iterable[Transfer]
) -> dict[str, float]:
  """Returns `clocks` by task; 0 for those that are not known."""
  of_host = clocks(profiles, sent)
  return {
    task: of_host.get(profile.host, 0.0) for task, profile in profiles.items()
  }


def trace(
  profiles: Mapping[str, Profile], sent: Sequence[Transfer]
) -> dict[str, Any]:
  """Returns the trace of some tasks, in the Trace Event Format of Chrome.

  Args:
    profiles: of tasks, by their names.
    sent: the tensors between them.

  Returns:
    What is to be written as JSON. Times are microseconds since the first event.
  """
  ahead = clocks_of_tasks(profiles, sent)
  numbers = {task: number for number, task in enumerate(profiles)}
  begin_ns = min(
    (
      event.start_ns - ahead[task]
      for task, profile in profiles.items()
      for event in profile.events
    ),
    default=0.0,
  )

  def place(task: str, event: Event) -> dict[str, Any]:
    return {
      'pid': numbers[task],
      'tid': event.thread,
      'ts': (event.start_ns - ahead[task] - begin_ns) / 1000,
    }

  events: list[dict[str, Any]] = []
  for task, profile in profiles.items():
    events += _names(numbers[task], task, profile)
    events += [
      {
        'ph': 'X',
        'name': event.name,
        'dur': event.duration_ns / 1000,
        'args': {k: v for k, v in event.args.items() if k[:1] != '_'},
        **place(task, event),
      }
      for event in profile.events
      if not _NOISE.match(event.name)
    ]
  for number, each in enumerate(sent):
    flow = {'cat': 'transfer', 'name': 'tensor', 'id': number}
    events += [
      {'ph': 's', **flow, **place(each.sender, each.sent)},
      {
        'ph': 'f',
        'bp': 'e',
        **flow,
        **place(each.receiver, each.received),
      },
    ]
  return {'traceEvents': events, 'displayTimeUnit': 'ms'}


def _names(number: int, task: str, profile: Profile) -> list[dict[str, Any]]:
  """Returns the events that name a process of the trace and its threads."""
  process = {'ph': 'M', 'pid': number}
  name = f'{task} on {profile.host}'
  return [
    {'name': 'process_name', 'args': {'name': name}, **process},
    {'name': 'process_sort_index', 'args': {'sort_index': number}, **process},
    *(
      {'name': 'thread_name', 'tid': tid, 'args': {'name': of}, **process}
      for tid, of in profile.threads.items()
    ),
  ]


def _outer_first(event: Event) -> tuple[float, float]:
  return event.start_ns, -event.duration_ns
