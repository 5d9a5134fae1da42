"""What tasks have written about how they get on, in lines of numbers."""

from collections.abc import Iterator
from collections.abc import Sequence
import itertools
import re


def numbers(log: str, what: str) -> list[list[float]]:
  """The numbers of each line that begins with a word, such as `at 5 1.5`."""
  # Whole lines: of the last, only the beginning may have been written.
  lines = re.findall(rf'^{what} (.*)\n', log, re.MULTILINE)
  return [found for found in map(_parsed, lines) if found]


def longest_gap(times: Sequence[float], began: float) -> tuple[float, float]:
  """When nothing happened for longest, from a moment on: begin and end."""
  return max(_gaps(times, began), key=_length, default=(began, began))


def resumed_after(
  times: Sequence[float], began: float, *, within: float
) -> float:
  """When something happened again, from a moment on.

  Args:
    times: when something happened.
    began: the moment.
    within: the seconds in which what was under way at that moment may still
      end.

  Returns:
    The seconds to the end of the longest time in which nothing happened, of
    those that begin in these seconds; 0 where nothing happens any more.
  """
  gaps = [gap for gap in _gaps(times, began) if gap[0] <= began + within]
  _, end = max(gaps, key=_length, default=(began, began))
  return end - began


def set_back(steps: Sequence[float]) -> int:
  """By how much the step has gone back, in all."""
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
  """The numbers of a line; none if the line of another has broken it."""
  try:
    return [float(word) for word in line.split()]
  except ValueError:
    return []
