"""Shares of a trace's time that each task computes, transfers and waits."""

import collections
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import enum
import re

from tfps.monitor import timeline

_Span = tuple[float, float]  # nanoseconds, by the clock of the first task

# An operation that runs in a thread is recorded by its name and type.
_OPERATION = re.compile(r'[^:]+:(?P<type>_?[A-Z]\w*)')
_STARTED = 'ExecutorState::ProcessAsync::Start'
_TRANSFERS = re.compile(r'_(Host)?(Send|Recv)')
_INPUT = re.compile(r'.*IteratorGetNext.*')


class Part(enum.Enum):
  """Activity of a task at some time; of several, the first in this order.

  So what is done beside a computation does not count: it costs no time.
  """

  COMPUTE = 'compute'
  RECEIVE = 'receive'
  SEND = 'send'
  INPUT = 'input'
  WAIT = 'wait'


def shares(
  profiles: Mapping[str, timeline.Profile],
  sent: Sequence[timeline.Transfer],
) -> dict[str, dict[Part, float]]:
  """Returns which part of its time each task does what.

  The time of a task is that from the first tensor that it sends or receives to
  the last. A tensor is received, and sent, from when the sender has it to when
  the receiver has it.

  Args:
    profiles: of tasks, by their names.
    sent: the tensors between them.

  Returns:
    By task, shares of 1; none of a task that no tensor of the trace concerns.
  """
  clock = timeline.clocks_of_tasks(profiles, sent)
  spans: dict[str, dict[Part, list[_Span]]] = {
    task: collections.defaultdict(list) for task in profiles
  }
  for each in sent:
    span = (
      each.sent.start_ns - clock[each.sender],
      each.received.end_ns - clock[each.receiver],
    )
    spans[each.sender][Part.SEND].append(span)
    spans[each.receiver][Part.RECEIVE].append(span)
  found = {}
  for task, by_part in spans.items():
    if within := _united([s for each in by_part.values() for s in each]):
      for part, (start, end) in _operations(profiles[task]):
        by_part[part].append((start - clock[task], end - clock[task]))
      found[task] = _divide(by_part, (within[0][0], within[-1][1]))
  return found


def _operations(profile: timeline.Profile) -> Iterator[tuple[Part, _Span]]:
  """Yields computations and waits for input, by the clock of their machine."""
  started: dict[object, list[float]] = collections.defaultdict(list)
  for event, run in timeline.within_runs(profile):
    key = event.args.get('step_id'), event.args.get('name')
    kind = str(event.args.get('kernel_type', ''))
    if event.name == _STARTED and _INPUT.fullmatch(kind):
      started[key].append(event.start_ns)
    elif event.name == timeline.DONE and started[key]:
      yield Part.INPUT, (started[key].pop(0), event.end_ns)
    elif run and (operation := _OPERATION.fullmatch(event.name)):
      kind = operation['type']
      if _INPUT.fullmatch(kind):
        yield Part.INPUT, (event.start_ns, event.end_ns)
      elif not _TRANSFERS.fullmatch(kind) and kind not in timeline.CALLS:
        yield Part.COMPUTE, (event.start_ns, event.end_ns)


def _divide(
  by_part: Mapping[Part, Iterable[_Span]], within: _Span
) -> dict[Part, float]:
  first, last = within
  length = max(last - first, 1.0)
  covered: list[_Span] = []
  found = {}
  before = 0.0
  for part in Part:
    if part is Part.WAIT:
      covered.append(within)
    clipped = [(max(a, first), min(b, last)) for a, b in by_part.get(part, ())]
    covered = _united(
      [*covered, *(span for span in clipped if span[0] < span[1])]
    )
    now = sum(end - start for start, end in covered)
    found[part] = (now - before) / length
    before = now
  return found


def _united(spans: Iterable[_Span]) -> list[_Span]:
  """Returns the same times as spans that are apart, in order."""
  united: list[_Span] = []
  for start, end in sorted(spans):
    if united and start <= united[-1][1]:
      united[-1] = united[-1][0], max(end, united[-1][1])
    else:
      united.append((start, end))
  return united
