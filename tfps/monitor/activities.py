"""Activities of threads: what they do or wait for, and their stacks."""

from collections.abc import Iterator
import dataclasses
import sys
import threading
import traceback


@dataclasses.dataclass(frozen=True)
class Activity:
  """Activity that has not ended.

  Attributes:
    what: such as 'waits for ps:0'.
    thread: the name of the thread, or of the task that another one waits for.
    since: when it began, by `time.monotonic`.
  """

  what: str
  thread: str
  since: float


def stacks() -> str:
  """Returns the Python stacks of all threads, the main thread first."""
  frames = sys._current_frames()
  main = threading.main_thread().ident
  names = {thread.ident: thread.name for thread in threading.enumerate()}
  idents = sorted(frames, key=lambda ident: (ident != main, ident))
  return ''.join(
    line
    for ident in idents
    for line in _stack(names.get(ident, 'not started by Python'), frames[ident])
  )


def _stack(name: str, frame: object) -> Iterator[str]:
  yield f'thread {name}:\n'
  yield from traceback.format_stack(frame)  # type: ignore[arg-type]
