"""Waits with a deadline, for tests that watch other processes."""

from collections.abc import Callable
import time


def until(
  condition: Callable[[], object], *, timeout_secs: float = 60.0
) -> None:
  """Returns once the condition holds."""
  deadline = time.monotonic() + timeout_secs
  while not condition():
    assert time.monotonic() < deadline, 'the condition still does not hold'
    time.sleep(0.02)
