"""Executors of TensorFlow's runtime, of which a thread may have its own."""

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
  """Gives this thread an executor of its own within a context.

  Otherwise it uses the process' executor, and the end of TensorFlow's
  `executor_scope` waits for everything that any thread executes through it,
  even for a message to a worker that is frozen.

  A thread must not end without restoring the previous executor: the runtime
  knows threads by numbers, which are reused, and the next thread of that number
  would use an executor that has been deleted.
  """
  handle = context.context()._context_handle
  # Not TensorFlow's `Executor`, which waits when it is deleted, and reports
  # errors that were raised already.
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
  """Defers the deletion of executors to the end of the context.

  While the runtime waits for all executors, it would use deleted ones.
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


def forget_error() -> None:
  """Forgets the last error of this thread's executor.

  An executor that is deleted reports its last error once more.
  """
  context.context().executor.clear_error()


def _delete(executor: Any) -> None:
  with _lock:
    if _num_keeping:
      _kept.append(executor)
    else:
      pywrap_tfe.TFE_DeleteExecutor(executor)
