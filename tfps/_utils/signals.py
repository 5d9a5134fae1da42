"""Signals reported by a thread, and the immediate end of the process.

Python runs handlers in the main thread, between two bytecodes. A signal that
comes just before that thread begins to wait does not end the wait: one in ten
thousand was heard only when the wait was over. The byte that Python's own
handler writes at once, `signal.set_wakeup_fd`, is always heard.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import os
import signal
import sys
import threading
from typing import NoReturn

from absl import logging

# Whether SIGTERM may arrive more than once: from a supervisor, which kills this
# process when its time is over, and from a scheduler, which signals each
# process that it finds.
REPEATS_VARIABLE = 'TFPS_SIGTERM_REPEATS'


@contextlib.contextmanager
def reported(
  numbers: Iterable[signal.Signals],
  report: Callable[[signal.Signals], object],
) -> Iterator[None]:
  """Calls `report`, in a thread, with each signal that arrives.

  Args:
    numbers: the signals to report; other handlers of them are suspended.
    report: raises nothing.

  Raises:
    ValueError: this is not the main thread, which alone may set handlers.
  """
  reader, writer = os.pipe()
  os.set_blocking(writer, False)
  wanted = frozenset(numbers)
  thread = threading.Thread(
    target=_report_all, args=(reader, wanted, report), name='tfps-signals'
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
  """Does nothing: without a handler, Python would not write the byte."""


def _report_all(
  reader: int,
  wanted: frozenset[signal.Signals],
  report: Callable[[signal.Signals], object],
) -> None:
  with open(reader, 'rb', buffering=0) as numbers:
    while number := numbers.read(1):
      if number[0] in wanted:
        report(signal.Signals(number[0]))


def ends_at_once(env: Mapping[str, str] = os.environ) -> bool:
  """Returns whether a second SIGTERM ends this process at once."""
  return not env.get(REPEATS_VARIABLE)


def exit_now(status: int) -> NoReturn:
  """Ends the process at once, with output flushed but without `atexit`.

  Through the interpreter's end, a process whose server is busy took seconds to
  end and crashed every other time: its threads outlive what they use.

  Args:
    status: the exit status.
  """
  logging.flush()
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(status)


def tell_user(text: str) -> None:
  """Prints a line to standard error; `logging` hides INFO by default."""
  print(f'tfps: {text}', file=sys.stderr, flush=True)
