"""Draws a part of what `tfps trace` has recorded.

  python -m tools.trace_picture trace.json.gz PICTURE [MILLISECONDS]

The part begins after the longest time, in the middle half of the trace, in
which no tensor was sent, which is between two executions. By default it is 20
milliseconds long.
"""

import argparse
import collections
from collections.abc import Mapping
from collections.abc import Sequence
import gzip
import itertools
import json
import pathlib
import sys
from typing import Any
from typing import NamedTuple

from matplotlib import collections as collections_lib
from matplotlib import figure as figure_lib
from matplotlib import patches

from tfps.monitor import timeline

_MILLISECONDS = 20.0
_LANES = 6  # of a task; what else goes on at the same time is drawn in the last

# Kinds of operations by what their names have, and their colours.
_KINDS = {
  'input': (('Iterator', 'Prefetch'), '#f0ad4e'),
  'reads and updates of variables': (
    ('ReadVariable', 'Gather', 'Assign', 'Scatter', 'Apply', 'Resource'),
    '#5a9e6f',
  ),
  'other operations': (('',), '#5b7fb5'),
}
# What is called to execute operations.
_SERVICE = 'EagerService'
_PULL, _PUSH = '#b0b0b0', '#c9302c'


class Arrow(NamedTuple):
  """A tensor on its way.

  Attributes:
    sender: name of the task.
    receiver: name of the task.
    sent: when it was sent, in microseconds.
    received: when it was received, in microseconds.
  """

  sender: str
  receiver: str
  sent: float
  received: float


def main(args: Sequence[str]) -> int:
  """Draws a trace; returns 0.

  Args:
    args: the command's.
  """
  parser = argparse.ArgumentParser(
    'python -m tools.trace_picture',
    description='Draws a part of what `tfps trace` has recorded.',
  )
  parser.add_argument('trace', help='such as trace.json.gz')
  parser.add_argument('picture', type=pathlib.Path, help='such as trace.png')
  parser.add_argument(
    'milliseconds', type=float, nargs='?', default=_MILLISECONDS
  )
  options = parser.parse_args(args)
  with gzip.open(options.trace, 'rt') as file:
    trace = json.load(file)
  draw(trace, options.picture, options.milliseconds)
  return 0


def draw(
  trace: Mapping[str, Any],
  path: pathlib.Path,
  milliseconds: float,
) -> None:
  """Draws operations as bars, a band for each task, and tensors as lines.

  Args:
    trace: as `tfps trace` writes it.
    path: of the picture; its suffix tells the format.
    milliseconds: how long the part is that is drawn.

  Raises:
    ValueError: no tensor was sent.
  """
  tasks = tasks_of(trace)
  arrows = arrows_of(trace)
  begin = beginning(arrows)
  end = begin + 1000 * milliseconds
  names = list(tasks.values())
  height = _LANES + 1
  figure = figure_lib.Figure((11, 1.2 + 1.1 * len(names)), layout='constrained')
  axes = figure.add_subplot()
  for place, process in enumerate(tasks):
    _draw_operations(axes, trace, process, place * height, begin, end)
  _draw_arrows(axes, arrows, names, height, begin, end)
  axes.set_xlim(0, milliseconds)
  axes.set_ylim(len(names) * height, -1)
  axes.set_yticks([i * height + _LANES / 2 for i in range(len(names))], names)
  axes.set_xlabel('ms')
  figure.legend(
    handles=_legend(), loc='outside upper center', ncols=5, frameon=False
  )
  figure.savefig(path)


def arrows_of(trace: Mapping[str, Any]) -> list[Arrow]:
  """Returns the tensors of which the sending and the arrival are known."""
  tasks = tasks_of(trace)
  ends: dict[int, dict[str, Any]] = collections.defaultdict(dict)
  for event in trace['traceEvents']:
    if event.get('cat') == 'transfer':
      ends[event['id']][event['ph']] = event
  return [
    Arrow(
      tasks[found['s']['pid']],
      tasks[found['f']['pid']],
      found['s']['ts'],
      found['f']['ts'],
    )
    for found in ends.values()
    if len(found) == 2
  ]


def beginning(arrows: Sequence[Arrow]) -> float:
  """Returns when to begin: with the first tensor after the longest silence.

  Args:
    arrows: all tensors, of which the middle half is looked at.

  Raises:
    ValueError: there is none.
  """
  if not arrows:
    raise ValueError(
      'No tensor was sent in the trace: record more steps (--steps), or a '
      'longer time (--secs).'
    )
  times = sorted(arrow.sent for arrow in arrows)
  middle = times[len(times) // 4 : 3 * len(times) // 4 + 1]
  pairs = list(itertools.pairwise(middle)) or [(times[0], times[0])]
  return max(pairs, key=lambda pair: pair[1] - pair[0])[1]


def tasks_of(trace: Mapping[str, Any]) -> dict[int, str]:
  """Returns the tasks' names by the numbers of their processes."""
  return {
    event['pid']: event['args']['name'].split(' on ')[0]
    for event in trace['traceEvents']
    if event['name'] == 'process_name'
  }


def _draw_operations(
  axes: Any,
  trace: Mapping[str, Any],
  process: int,
  top: int,
  begin: float,
  end: float,
) -> None:
  found = sorted(
    (event['ts'], event['dur'], event['name'])
    for event in trace['traceEvents']
    if event['ph'] == 'X'
    and event['pid'] == process
    and _is_operation(event['name'])
    and begin <= event['ts'] + event['dur']
    and event['ts'] <= end
  )
  free = [0.0] * _LANES  # when each lane is free
  bars = collections.defaultdict(list)
  for start, duration, name in found:
    lane = next((i for i, at in enumerate(free) if at <= start), _LANES - 1)
    free[lane] = max(free[lane], start + duration)
    left, width = (start - begin) / 1000, max(duration / 1000, 0.02)
    bars[_kind(name)].append(patches.Rectangle((left, top + lane), width, 0.9))
  for kind, rectangles in bars.items():
    _, colour = _KINDS[kind]
    axes.add_collection(
      collections_lib.PatchCollection(rectangles, color=colour, linewidth=0)
    )


def _draw_arrows(
  axes: Any,
  arrows: Sequence[Arrow],
  names: Sequence[str],
  height: int,
  begin: float,
  end: float,
) -> None:
  lines, colours = [], []
  for arrow in arrows:
    if begin <= arrow.sent <= end:
      places = names.index(arrow.sender), names.index(arrow.receiver)
      goes_down = places[1] > places[0]
      edges = (_LANES, 0) if goes_down else (0, _LANES)
      lines.append(
        [
          ((at - begin) / 1000, place * height + edge)
          for at, place, edge in zip(arrow[2:], places, edges, strict=True)
        ]
      )
      colours.append(_PUSH if arrow.receiver.startswith('ps') else _PULL)
  axes.add_collection(
    collections_lib.LineCollection(lines, colors=colours, linewidths=0.6)
  )


def _is_operation(name: str) -> bool:
  """Returns whether an event is an operation, or the work of an input."""
  node, _, kind = name.rpartition(':')
  is_node = bool(node) and kind.isidentifier() and not node.endswith(':')
  is_own = (
    is_node and node != _SERVICE and kind not in {'_Send', *timeline.CALLS}
  )
  return is_own or name.startswith('Iterator')


def _kind(name: str) -> str:
  kind = name if name.startswith('Iterator') else name.rpartition(':')[2]
  return next(
    what
    for what, (parts, _) in _KINDS.items()
    if any(part in kind for part in parts)
  )


def _legend() -> list[Any]:
  return [
    *(
      patches.Patch(color=colour, label=kind)
      for kind, (_, colour) in _KINDS.items()
    ),
    patches.Patch(color=_PUSH, label='a tensor to a ps'),
    patches.Patch(color=_PULL, label='a tensor to another task'),
  ]


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
