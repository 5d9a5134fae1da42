"""What a program that trains does when it is told to end: it saves, and ends.

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
  """Ends the process on SIGTERM, where the program does nothing of its own.

  A second SIGTERM ends it at once. Signals reach programs only in their main
  thread: in another, this does nothing.

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
    """Leaves SIGTERM to the program again; twice is harmless."""
    if self._is_set and threading.current_thread() is threading.main_thread():
      signal.signal(signal.SIGTERM, signal.SIG_DFL)
      self._is_set = False

  def _on_signal(self, number: int, frame: types.FrameType | None) -> None:
    if self._is_told:
      signals.exit_now(_STATUS)
    self._is_told = True
    # Not here: the main thread may be inside of what has to end first.
    threading.Thread(target=self._leave, name='tfps-preemption').start()

  def _leave(self) -> None:
    try:
      self._save()
    finally:
      signals.tell_user(f'Leaving on SIGTERM with status {_STATUS}.')
      signals.exit_now(_STATUS)
