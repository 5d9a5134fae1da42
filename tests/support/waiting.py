"""Waits with a deadline, for tests that watch other processes."""

from collections.abc import Callable
import time


def until(
  condition: Callable[[], object],
  *,
  timeout_secs: float = 60.0,
  every_secs: float = 0.02,
  say: Callable[[], object] = lambda: 'the condition still does not hold',
) -> None:
  """Returns once the condition holds; `say` tells why it does not."""
  deadline = time.monotonic() + timeout_secs
  while not condition():
    assert time.monotonic() < deadline, say()
    time.sleep(every_secs)
