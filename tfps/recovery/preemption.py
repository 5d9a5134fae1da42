"""Saves and ends a training process on SIGTERM.

Schedulers send SIGTERM before they take a machine away. The status 143 tells
them that the task is to be started again.
"""

from collections.abc import Callable
import signal
import threading
import types

from tfps._utils import signals

_STATUS = 128 + signal.SIGTERM


class Preemption:
  """Handler of SIGTERM that saves and ends the process.

  A second SIGTERM ends it at once, unless a supervisor repeats it. A handler
  that the program has set is kept. Handlers can only be set in the main thread;
  elsewhere this does nothing.

  Args:
    save: called first, in a thread; nothing may be trained after it.
  """

  def __init__(self, save: Callable[[], object]) -> None:
    self._save = save
    self._is_told = False
    self._is_set = (
      threading.current_thread() is threading.main_thread()
      and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    )
    if self._is_set:
      signal.signal(signal.SIGTERM, self._on_signal)

  def stop(self) -> None:
    """Restores the default handler; stopping twice is harmless."""
    if self._is_set and threading.current_thread() is threading.main_thread():
      signal.signal(signal.SIGTERM, signal.SIG_DFL)
      self._is_set = False

  def _on_signal(self, number: int, frame: types.FrameType | None) -> None:
    if self._is_told:
      if signals.ends_at_once():
        signals.exit_now(_STATUS)
      return
    self._is_told = True
    # In a thread: saving may wait for what the main thread executes.
    threading.Thread(target=self._leave, name='tfps-preemption').start()

  def _leave(self) -> None:
    try:
      self._save()
    finally:
      signals.tell_user(f'Leaving on SIGTERM with status {_STATUS}.')
      signals.exit_now(_STATUS)
