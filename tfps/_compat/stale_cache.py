"""Removal of what the runtime caches of tasks from before their restart.

Both calls that do so wait, without a deadline, for all executions of all
threads. An execution may take long, may hang, or may wait for the very task
that has restarted. So they are made in a thread of their own, which is left
behind at a deadline, and ends with the executions.
"""

from collections.abc import Callable
import concurrent.futures
import ctypes
import functools
import pathlib
from typing import Any

from absl import logging
import tensorflow as tf
from tensorflow.python.eager import context

from tfps import errors
from tfps._compat import executors
from tfps._compat import side_executor
from tfps._utils import deadlines
from tfps._utils import threads
from tfps._utils import timeouts

_pointer_of = ctypes.PYFUNCTYPE(
  ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p
)(('PyCapsule_GetPointer', ctypes.pythonapi))


class StillExecutingError(errors.DeadlineError):
  """Executions of this process have not ended in time."""

  def __init__(self, secs: float) -> None:
    super().__init__(
      f'After {secs:g} seconds, executions of this process on other tasks have '
      'not ended. What is cached of earlier tasks is removed when they have.'
    )


def forget(within_secs: float | None = None) -> None:
  """Removes cached kernels and errors, after the runtime got the new tasks.

  Args:
    within_secs: how long to wait for executions; None for the default.

  Raises:
    StillExecutingError: the removal is deferred until executions have ended.
    tf.errors.OpError: a task could not be reached.
  """
  if within_secs is None:
    within_secs = timeouts.current().forget_secs
  _forgetting.wait(_forget_kernels_and_errors, within_secs)


def forget_if_stale(failure: Exception) -> None:
  """Removes cached kernels if a call failed because they are stale.

  A function that another thread has called while the runtime got the new tasks
  would fail forever.

  Args:
    failure: of a call.
  """
  if 'different device incarnation' in str(failure):
    try:
      _forgetting.wait(_forget_kernels, timeouts.current().forget_secs)
    except errors.DeadlineError as error:
      logging.warning('%s', error)


class _Forgetting:
  """Removals one at a time: they would pile up behind a hung execution."""

  def __init__(self) -> None:
    self._under_way: concurrent.futures.Future[None] | None = None

  def wait(self, forget: Callable[[Any], None], secs: float) -> None:
    """Calls a function with the context's handle; waits until it returns."""
    deadline = deadlines.after(secs)
    if self._under_way is not None:
      _wait(self._under_way, deadline, secs)
    handle = context.context()._context_handle
    if handle is None:
      return

    def run() -> None:
      with executors.kept():
        forget(handle)

    # Operations that begin later do not delay the removal.
    with side_executor.drained():
      begun = self._under_way = threads.begin('tfps-forget', run)
      _wait(begun, deadline, secs)
    begun.result()


_forgetting = _Forgetting()


def _wait(
  future: 'concurrent.futures.Future[None]',
  deadline: float | None,
  secs: float,
) -> None:
  if not threads.is_done(future, deadlines.seconds_until(deadline)):
    raise StillExecutingError(secs)


def _forget_kernels_and_errors(handle: Any) -> None:
  _forget_kernels(handle)
  # Otherwise another thread's next call would raise an error of a lost task.
  context.context().clear_executor_errors()


def _forget_kernels(handle: Any) -> None:
  # `Context.clear_kernel_cache` holds the interpreter's lock; `ctypes` releases
  # it.
  pointer = _pointer_of(ctypes.py_object(handle), None)
  _library().TFE_ContextClearCaches(ctypes.c_void_p(pointer))


@functools.cache
def _library() -> ctypes.CDLL:
  (path,) = pathlib.Path(tf.sysconfig.get_lib()).glob('libtensorflow_cc.*')
  return ctypes.CDLL(str(path))
