"""Which of the runtime's executors a thread's operations go through."""

from collections.abc import Iterator
import contextlib
import threading
from typing import Any

from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context

_lock = threading.Lock()
_num_keeping = 0
_kept: list[Any] = []


@contextlib.contextmanager
def own() -> Iterator[None]:
  """Has what this thread does go through an executor of its own.

  Otherwise it is that of the whole process, and TensorFlow's `executor_scope`
  waits, as soon as it has taken that back, for all that anybody has under way
  by it, even for a message to a worker that is frozen.

  A thread must not end without giving back the one from before: the runtime
  knows threads by numbers, which are given again, and the next thread of that
  number would use an executor that is deleted meanwhile.
  """
  handle = context.context()._context_handle
  # Bare ones: TensorFlow's `Executor` waits when it is deleted, and complains
  # of errors that somebody has had already.
  before = pywrap_tfe.TFE_ContextGetExecutorForThread(handle)
  is_async, streams, unlimited = False, True, 0
  executor = pywrap_tfe.TFE_NewExecutor(is_async, streams, unlimited)
  pywrap_tfe.TFE_ContextSetExecutorForThread(handle, executor)
  try:
    yield
  finally:
    pywrap_tfe.TFE_ContextSetExecutorForThread(handle, before)
    pywrap_tfe.TFE_DeleteExecutor(before)
    _delete(executor)


@contextlib.contextmanager
def kept() -> Iterator[None]:
  """Has no executor be deleted for the time being.

  While the runtime waits for all of them, it goes on with those that have been
  deleted meanwhile.
  """
  global _num_keeping
  with _lock:
    _num_keeping += 1
  try:
    yield
  finally:
    with _lock:
      _num_keeping -= 1
      while _kept and not _num_keeping:
        pywrap_tfe.TFE_DeleteExecutor(_kept.pop())


def _delete(executor: Any) -> None:
  with _lock:
    if _num_keeping:
      _kept.append(executor)
    else:
      pywrap_tfe.TFE_DeleteExecutor(executor)
