"""Does something every so often, in a thread of its own."""

from collections.abc import Callable
import threading

from tfps._utils import timeouts


class Periodic:
  """Calls a function again and again, from `start` to `stop`.

  Args:
    name: of the thread.
    every_secs: how long to wait after one call, and before the first.
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
    """Calls it from now on."""
    self.stop()
    self._stopping = threading.Event()
    self._thread = threading.Thread(
      target=self._run, name=self._name, daemon=True
    )
    self._thread.start()

  def stop(self) -> None:
    """Does not call it any more; twice is harmless."""
    self._stopping.set()
    if self._thread is not None:
      self._thread.join(timeouts.current().thread_stop_secs)
      self._thread = None

  def _run(self) -> None:
    stopping = self._stopping
    while not stopping.wait(self._every_secs):
      self._function()
