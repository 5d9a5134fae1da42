"""What a process does on servers beside everything else.

Some of what the runtime does waits for all operations that are under way, and
connecting to other servers is fatal to them. Those here can be cancelled.
"""

from collections.abc import Iterator
import contextlib

import tensorflow as tf
from tensorflow.python.eager import cancellation

from tfps import errors
from tfps._compat import cancellation as cancellation_lib
from tfps._compat import executors
from tfps._utils import quiesce_lock
from tfps._utils import timeouts


class _Asides:
  def __init__(self) -> None:
    self._gate = quiesce_lock.QuiesceLock()
    self._managers: dict[cancellation.CancellationManager, str] = {}
    self._is_cancelling = False

  @contextlib.contextmanager
  def aside(self, device: str) -> Iterator[None]:
    with self._gate:
      manager = cancellation.CancellationManager()
      self._managers[manager] = device
      if self._is_cancelling:
        manager.start_cancel()
      try:
        with (
          executors.own(),
          tf.device(device),
          cancellation.CancellationManagerContext(manager),
        ):
          yield
      finally:
        del self._managers[manager]

  @contextlib.contextmanager
  def none(self, patience_secs: float) -> Iterator[None]:
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
            f'What this process did on {where} has been cancelled, but is not '
            f'over after {secs:g} seconds.'
          ) from None
      yield

  def _cancel(self, is_closing: bool) -> None:
    self._is_cancelling = is_closing
    if is_closing:
      for manager in list(self._managers):
        manager.start_cancel()


_asides = _Asides()


def aside(device: str) -> contextlib.AbstractContextManager[None]:
  """Has this thread call functions on a device beside everything else.

  They are done, or have failed, when it ends.

  Raises:
    tf.errors.OpError: one has failed, or somebody needed to be without.
  """
  cancellation_lib.keep_apart()
  return _asides.aside(device)


def none(
  patience_secs: float = 0.0,
) -> contextlib.AbstractContextManager[None]:
  """Lets nobody begin with what is done so, and has it end.

  Args:
    patience_secs: how long to wait before it is cancelled.

  Raises:
    errors.DeadlineError: it names the devices where it is not over.
  """
  return _asides.none(patience_secs)


def none_while_connecting() -> contextlib.AbstractContextManager[None]:
  """As `none`, for what connects this process, perhaps to other servers.

  Servers on which something is cancelled may still be at it, and do not all
  survive the end of a connection then.
  """
  return none(timeouts.current().pipeline_end_secs)
