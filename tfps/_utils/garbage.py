"""Garbage collection while many objects are made that stay."""

from collections.abc import Iterator
import contextlib
import gc
import threading

# Number of new objects after which Python looks for garbage; 700 by default.
_NUM_OBJECTS = 100_000

_lock = threading.Lock()
_num_inside = 0
_before: tuple[int, int, int]


@contextlib.contextmanager
def looked_for_rarely() -> Iterator[None]:
  """Returns a context in which Python looks for garbage less often.

  A graph is hundreds of thousands of objects, of which hardly any are garbage.
  To look through all of them again and again takes a tenth of the time in which
  a step is traced. A higher threshold, or none, is left as it is.
  """
  global _num_inside, _before
  with _lock:
    _num_inside += 1
    if _num_inside == 1:
      _before = gc.get_threshold()
      if 0 < _before[0] < _NUM_OBJECTS:
        gc.set_threshold(_NUM_OBJECTS, *_before[1:])
  try:
    yield
  finally:
    with _lock:
      _num_inside -= 1
      if not _num_inside:
        gc.set_threshold(*_before)
