"""What tasks have written about how they get on, in lines of numbers."""

from collections.abc import Sequence
import itertools
import re


def numbers(log: str, what: str) -> list[list[float]]:
  """The numbers of each line that begins with a word, such as `at 5 1.5`."""
  # Whole lines: of the last, only the beginning may have been written.
  found = re.findall(rf'^{what} (.*)\n', log, re.MULTILINE)
  return [[float(word) for word in line.split()] for line in found]


def longest_gap(times: Sequence[float], began: float) -> float:
  """The longest time in which nothing happened, from a moment on."""
  later = sorted(at for at in times if at > began)
  pairs = itertools.pairwise([began, *later])
  return max((after - before for before, after in pairs), default=0.0)


def set_back(steps: Sequence[float]) -> int:
  """By how much the step has gone back, in all."""
  return int(sum(max(0.0, a - b) for a, b in itertools.pairwise(steps)))
