"""What is done in a thread of its own, which may have to be left behind."""

from collections.abc import Callable
import concurrent.futures
import threading
from typing import TypeVar

_Result = TypeVar('_Result')


def begin(
  name: str, function: Callable[[], _Result]
) -> 'concurrent.futures.Future[_Result]':
  """Calls a function in a thread of its own.

  Args:
    name: of the thread.
    function: may never return; the program can end all the same.
  """
  future: concurrent.futures.Future[_Result] = concurrent.futures.Future()
  threading.Thread(
    target=_fulfil, args=(future, function), name=name, daemon=True
  ).start()
  return future


def is_done(
  future: 'concurrent.futures.Future[_Result]', timeout_secs: float | None
) -> bool:
  """Whether it has ended, within so many seconds."""
  return bool(concurrent.futures.wait([future], timeout_secs).done)


def _fulfil(
  future: 'concurrent.futures.Future[_Result]',
  function: Callable[[], _Result],
) -> None:
  try:
    future.set_result(function())
  except BaseException as error:
    future.set_exception(error)
