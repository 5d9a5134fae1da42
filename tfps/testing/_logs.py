"""What the tasks of a cluster write, each into a file of its own."""

import pathlib
import re
import time
from typing import IO

from tfps import errors
from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib

_TAIL = 2000


class Logs:
  """The logs of tasks, over all their starts.

  Args:
    folder: where they are, as ps-0.log.
  """

  def __init__(self, folder: pathlib.Path) -> None:
    self._folder = folder
    self._begun_at: dict[spec_lib.Task, int] = {}

  def make_folder(self) -> None:
    """To be called before anything is written."""
    self._folder.mkdir(parents=True, exist_ok=True)

  def begin(self, task: spec_lib.Task) -> IO[bytes]:
    """The file of a task that is about to start."""
    log = self._path(task).open('ab')
    self._begun_at[task] = log.tell()
    return log

  def read(self, task: spec_lib.Task) -> str:
    """What a task has written so far."""
    return self._path(task).read_text(errors='replace')

  def has(self, task: spec_lib.Task, text: str) -> bool:
    """Whether a task has written something since its last start."""
    log = self._path(task).read_bytes()
    return text.encode() in log[self._begun_at[task] :]

  def tail(self, task: spec_lib.Task) -> str:
    """The end of it, for an error."""
    return f' Its log ends:\n{self.read(task)[-_TAIL:]}'

  def wait_for_line(
    self, task: spec_lib.Task, beginning: str, timeout_secs: float
  ) -> None:
    """Waits until a task has written a line that begins so.

    Raises:
      errors.DeadlineError: it has not; the message ends with its log.
    """
    deadline = time.monotonic() + timeout_secs
    line = re.compile(rf'^{re.escape(beginning)}', re.MULTILINE)
    while not line.search(self.read(task)):
      if time.monotonic() > deadline:
        raise errors.DeadlineError(
          f'{task} has not written {beginning!r} after {timeout_secs:g} '
          f'seconds.{self.tail(task)}'
        )
      time.sleep(timeouts.current().poll_secs)

  def _path(self, task: spec_lib.Task) -> pathlib.Path:
    return self._folder / f'{task.job}-{task.index}.log'
