"""Background threads: periodic calls, calls that may hang, many that wait."""

import collections
from collections.abc import Callable
from collections.abc import Iterable
import concurrent.futures
import ctypes
import functools
import sys
import threading
from typing import TypeVar

from tfps._utils import timeouts

_Item = TypeVar('_Item')
_Result = TypeVar('_Result')

# From <linux/prctl.h>.
_PR_FUTEX_HASH, _PR_FUTEX_HASH_SET_SLOTS = 78, 1
_NUM_SLOTS = 4096  # of 64 bytes


class Periodic:
  """Calls a function periodically, in a thread, from `start` to `stop`.

  Args:
    name: of the thread.
    every_secs: the pause after each call, and before the first.
    function: raises nothing.
  """

  def __init__(
    self, name: str, every_secs: float, function: Callable[[], object]
  ) -> None:
    self._name = name
    self._every_secs = every_secs
    self._function = function
    self._stopping = threading.Event()
    self._thread: threading.Thread | None = None

  def start(self) -> None:
    """Starts the calls; a running thread is replaced."""
    self.stop()
    self._stopping = threading.Event()
    self._thread = threading.Thread(
      target=self._run, name=self._name, daemon=True
    )
    self._thread.start()

  def stop(self) -> None:
    """Ends the calls, waiting for one under way; stopping twice is harmless."""
    self._stopping.set()
    if self._thread is not None:
      self._thread.join(timeouts.current().thread_stop_secs)
      self._thread = None

  def _run(self) -> None:
    stopping = self._stopping
    while not stopping.wait(self._every_secs):
      self._function()


def begin(
  name: str, function: Callable[[], _Result]
) -> 'concurrent.futures.Future[_Result]':
  """Calls a function in a daemon thread of its own.

  Args:
    name: of the thread.
    function: may never return: daemon threads do not keep a program alive.

  Returns:
    A future of the function's result.
  """
  future: concurrent.futures.Future[_Result] = concurrent.futures.Future()
  threading.Thread(
    target=_fulfil, args=(future, function), name=name, daemon=True
  ).start()
  return future


def map_all(
  name: str,
  function: Callable[[_Item], _Result],
  items: Iterable[_Item],
  *,
  at_once: int,
) -> list[_Result]:
  """Calls a function for each item on daemon threads; returns the results.

  Unlike those of an executor, which refuses them, calls may begin while the
  interpreter ends.

  Args:
    name: of the threads.
    function: gets an item.
    items: what to call it for.
    at_once: the number of threads.

  Raises:
    Exception: that of a call, once all have ended.
  """
  left = collections.deque(enumerate(items))
  results: dict[int, _Result] = {}

  def work() -> None:
    while left:
      try:
        index, item = left.popleft()
      except IndexError:  # another thread has the last one
        return
      results[index] = function(item)

  threads = [begin(name, work) for _ in range(min(at_once, len(left)))]
  concurrent.futures.wait(threads)
  for thread in threads:
    thread.result()
  return [results[index] for index in sorted(results)]


@functools.cache
def expect_many() -> None:
  """Keeps it cheap to wake a thread while thousands of others wait.

  Linux finds the thread to wake in a hash table of the process. From 6.16 its
  size depends on the number of CPUs alone: with two of them it has 16 slots,
  and each wake searches a sixteenth of all threads that wait. A server has some
  hundred threads. Other kernels ignore the call.
  """
  if sys.platform == 'linux':
    ctypes.CDLL(None).prctl(
      _PR_FUTEX_HASH, _PR_FUTEX_HASH_SET_SLOTS, _NUM_SLOTS, 0, 0
    )


def is_done(
  future: 'concurrent.futures.Future[_Result]', timeout_secs: float | None
) -> bool:
  """Waits for so many seconds; returns whether the future is done."""
  return bool(concurrent.futures.wait([future], timeout_secs).done)


def _fulfil(
  future: 'concurrent.futures.Future[_Result]',
  function: Callable[[], _Result],
) -> None:
  try:
    future.set_result(function())
  except BaseException as error:
    future.set_exception(error)
