"""Signals as events of a queue, told by a thread.

Python runs handlers in the main thread, between two bytecodes. A signal that
comes just before that thread begins to wait does not end the wait: one in ten
thousand was heard only when the wait was over. The byte that Python's own
handler writes at once, `signal.set_wakeup_fd`, is always heard.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
import contextlib
import os
import signal
import threading


@contextlib.contextmanager
def reported(
  numbers: Iterable[signal.Signals],
  report: Callable[[signal.Signals], object],
) -> Iterator[None]:
  """Has a thread call `report` with each of these signals that comes.

  Use it in the main thread, as it sets handlers.
  """
  reader, writer = os.pipe()
  os.set_blocking(writer, False)
  wanted = frozenset(numbers)
  thread = threading.Thread(
    target=_tell, args=(reader, wanted, report), name='tfps-signals'
  )
  thread.start()
  earlier_writer = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
  earlier = {number: signal.signal(number, _ignore) for number in wanted}
  try:
    yield
  finally:
    for number, handler in earlier.items():
      signal.signal(number, handler)
    signal.set_wakeup_fd(earlier_writer)
    os.close(writer)
    thread.join()


def _ignore(number: int, frame: object) -> None:
  """A handler, without which no byte is written."""


def _tell(
  reader: int,
  wanted: frozenset[signal.Signals],
  report: Callable[[signal.Signals], object],
) -> None:
  with open(reader, 'rb', buffering=0) as numbers:
    while number := numbers.read(1):
      if number[0] in wanted:
        report(signal.Signals(number[0]))
