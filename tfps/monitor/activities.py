"""Activities of threads: what they do or wait for, and their stacks."""

from collections.abc import Iterator
import dataclasses
import gc
import sys
import threading
import traceback
import types

_Place = tuple[types.FrameType, int]

_lock = threading.Lock()


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
  found = _walk_all()
  main = threading.main_thread().ident
  names = {thread.ident: thread.name for thread in threading.enumerate()}
  return ''.join(
    line
    for ident in sorted(found, key=lambda ident: (ident != main, ident))
    for line in _stack(names.get(ident, 'not started by Python'), found[ident])
  )


def _walk_all() -> dict[int, list[_Place]]:
  """Returns the frames of each thread with their lines, the newest first.

  Up to Python 3.11, garbage may be collected while the interpreter makes the
  object of a frame. What is collected may let another thread go on, whose frame
  is gone then, or which begins a thread and so waits for a lock that this
  thread holds: the process would crash or stand still.
  """
  with _lock:
    is_enabled = gc.isenabled()
    gc.disable()
    try:
      return {
        ident: list(traceback.walk_stack(frame))
        for ident, frame in sys._current_frames().items()
      }
    finally:
      if is_enabled:
        gc.enable()


def _stack(name: str, places: list[_Place]) -> Iterator[str]:
  yield f'thread {name}:\n'
  yield from traceback.StackSummary.extract(reversed(places)).format()
