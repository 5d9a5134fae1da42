"""Parses the lines of numbers with which tasks log their progress."""

from collections.abc import Iterator
from collections.abc import Sequence
import itertools
import re


def numbers(log: str, what: str) -> list[list[float]]:
  """Returns the numbers of each line with a first word, such as `at 5 1.5`.

  Args:
    log: the text of a log.
    what: the first word of the lines.
  """
  # Only whole lines: the last one may be incomplete.
  lines = re.findall(rf'^{what} (.*)\n', log, re.MULTILINE)
  return [found for found in map(_parsed, lines) if found]


def longest_gap(times: Sequence[float], began: float) -> tuple[float, float]:
  """Returns begin and end of the longest time without an event.

  Args:
    times: the times of events.
    began: the time from which to count; earlier events are ignored.
  """
  return max(_gaps(times, began), key=_length, default=(began, began))


def resumed_after(
  times: Sequence[float], began: float, *, within: float
) -> float:
  """Returns the seconds from a fault to the first event after its pause.

  Args:
    times: the times of events.
    began: the time of the fault.
    within: seconds in which executions that were running at that time may
      still end.

  Returns:
    The seconds to the end of the longest pause that begins within these
    seconds; 0 if there are no further events.
  """
  gaps = [gap for gap in _gaps(times, began) if gap[0] <= began + within]
  _, end = max(gaps, key=_length, default=(began, began))
  return end - began


def set_back(steps: Sequence[float]) -> int:
  """Returns the sum of all decreases of the step."""
  return int(sum(max(0.0, a - b) for a, b in itertools.pairwise(steps)))


def _gaps(
  times: Sequence[float], began: float
) -> Iterator[tuple[float, float]]:
  later = sorted(at for at in times if at > began)
  return itertools.pairwise([began, *later])


def _length(gap: tuple[float, float]) -> float:
  begin, end = gap
  return end - begin


def _parsed(line: str) -> list[float]:
  """Returns the numbers of a line; none if another line interrupts it."""
  try:
    return [float(word) for word in line.split()]
  except ValueError:
    return []
