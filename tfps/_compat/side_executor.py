"""Background operations on servers, which can be cancelled and drained.

Some calls of the runtime wait for all operations that are under way, and
connecting to other servers is fatal to them. Background operations can be ended
first.
"""

from collections.abc import Iterator
import contextlib
import threading

import tensorflow as tf
from tensorflow.python.eager import cancellation

from tfps import errors
from tfps._compat import cancellation as cancellation_lib
from tfps._compat import executors
from tfps._utils import quiesce_lock
from tfps._utils import timeouts


class _SideExecutor:
  def __init__(self) -> None:
    self._gate = quiesce_lock.QuiesceLock()
    self._managers: dict[cancellation.CancellationManager, str] = {}
    self._is_cancelling = False
    self._own = threading.local()

  @property
  def is_aside(self) -> bool:
    return getattr(self._own, 'is_aside', False)

  @contextlib.contextmanager
  def run_aside(self, device: str) -> Iterator[None]:
    with self._gate:
      manager = cancellation.CancellationManager()
      self._managers[manager] = device
      if self._is_cancelling:
        manager.start_cancel()
      self._own.is_aside = True
      try:
        with (
          executors.own(),
          tf.device(device),
          cancellation.CancellationManagerContext(manager),
        ):
          yield
      finally:
        self._own.is_aside = False
        del self._managers[manager]

  @contextlib.contextmanager
  def drained(self, patience_secs: float) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
      try:
        stack.enter_context(self._gate.closed(within_secs=patience_secs))
      except TimeoutError:
        secs = timeouts.current().cancel_secs
        try:
          stack.enter_context(self._gate.closed(self._cancel, secs))
        except TimeoutError:
          where = ', '.join(sorted(set(self._managers.values())))
          raise errors.DeadlineError(
            f'Operations of this process on {where} were cancelled, but have '
            f'not ended after {secs:g} seconds.'
          ) from None
      yield

  def _cancel(self, is_closing: bool) -> None:
    self._is_cancelling = is_closing
    if is_closing:
      for manager in list(self._managers):
        manager.start_cancel()


_executor = _SideExecutor()


def run_aside(device: str) -> contextlib.AbstractContextManager[None]:
  """Makes this thread's calls background operations within a context.

  They have ended when the context does.

  Args:
    device: where they are executed.

  Raises:
    tf.errors.OpError: one has failed, or was cancelled by `drained`.
  """
  cancellation_lib.keep_apart()
  return _executor.run_aside(device)


def is_aside() -> bool:
  """Returns whether this thread's calls are background operations.

  They may not wait for the repair of a ps, which waits for their end.
  """
  return _executor.is_aside


def drained(
  patience_secs: float = 0.0,
) -> contextlib.AbstractContextManager[None]:
  """Ends background operations, and lets none begin within a context.

  Args:
    patience_secs: how long to wait before they are cancelled.

  Raises:
    errors.DeadlineError: some have not ended; names their devices.
  """
  return _executor.drained(patience_secs)


def drained_to_connect() -> contextlib.AbstractContextManager[None]:
  """Drains background operations patiently, before this process connects.

  Servers may still execute what was cancelled, and some do not survive the end
  of a connection then.
  """
  return drained(timeouts.current().pipeline_end_secs)
