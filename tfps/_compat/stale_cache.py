"""Has the runtime forget what it has of tasks as they were before a restart.

Both calls that do so wait for all that is being executed, by whomever, and have
no deadline. What is executed may last, may hang, or may wait for just the task
that has restarted. So they are made in a thread of their own, which is given up
after a while, and ends once that is over.
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
  """What this process has others execute is not over."""

  def __init__(self, secs: float) -> None:
    super().__init__(
      f'After {secs:g} seconds, what this process has tasks execute is not '
      'over. What it knows of them as they were is forgotten then.'
    )


def forget(within_secs: float | None = None) -> None:
  """Forgets all, once the runtime was told of the tasks as they are.

  Raises:
    StillExecutingError: that is put off until what is executed is over.
    tf.errors.OpError: a task could not be reached.
  """
  if within_secs is None:
    within_secs = timeouts.current().forget_secs
  _forgetting.wait(_forget_kernels_and_errors, within_secs)


def forget_if_stale(failure: Exception) -> None:
  """Has functions made anew, if they were made for tasks as they once were.

  One that another thread has called while the runtime was being told of a
  restart would fail for ever.

  Args:
    failure: of a call.
  """
  if 'different device incarnation' in str(failure):
    try:
      _forgetting.wait(_forget_kernels, timeouts.current().forget_secs)
    except errors.DeadlineError as error:
      logging.warning('%s', error)


class _Forgetting:
  """One at a time: they would pile up behind what hangs."""

  def __init__(self) -> None:
    self._under_way: concurrent.futures.Future[None] | None = None

  def wait(self, forget: Callable[[Any], None], secs: float) -> None:
    """Returns once the function, which gets the context, has forgotten."""
    deadline = deadlines.after(secs)
    if self._under_way is not None:
      _wait(self._under_way, deadline, secs)
    handle = context.context()._context_handle
    if handle is None:
      return

    def run() -> None:
      with executors.kept():
        forget(handle)

    # What begins later is not waited for, and need not stay away.
    with side_executor.none():
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
  # Else whatever another thread does next would fail of what was lost.
  context.context().clear_executor_errors()


def _forget_kernels(handle: Any) -> None:
  # `Context.clear_kernel_cache` has the interpreter's lock meanwhile; `ctypes`
  # lets it go.
  pointer = _pointer_of(ctypes.py_object(handle), None)
  _library().TFE_ContextClearCaches(ctypes.c_void_p(pointer))


@functools.cache
def _library() -> ctypes.CDLL:
  (path,) = pathlib.Path(tf.sysconfig.get_lib()).glob('libtensorflow_cc.*')
  return ctypes.CDLL(str(path))
