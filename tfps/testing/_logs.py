"""Log files of the tasks of a cluster."""

import pathlib
import re
import time
from typing import IO

from tfps import errors
from tfps._utils import private_files
from tfps._utils import processes
from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib


class Logs:
  """The logs of tasks, over all their starts.

  Args:
    folder: contains a file for each task, such as ps-0.log.
  """

  def __init__(self, folder: pathlib.Path) -> None:
    self._folder = folder
    self._begun_at: dict[spec_lib.Task, int] = {}

  def make_folder(self) -> None:
    """Creates the folder; call it before `begin`."""
    private_files.make_folder(self._folder)

  def begin(self, task: spec_lib.Task) -> IO[bytes]:
    """Opens the log of a task that is about to start, for appending."""
    log = private_files.open_file(self._path(task), 'ab')
    self._begun_at[task] = log.tell()
    return log

  def read(self, task: spec_lib.Task) -> str:
    """Returns the text that a task has written so far."""
    return self._path(task).read_text(errors='replace')

  def has(self, task: spec_lib.Task, text: str) -> bool:
    """Returns whether a task has written a text since its last start."""
    log = self._path(task).read_bytes()
    return text.encode() in log[self._begun_at[task] :]

  def tail(self, task: spec_lib.Task) -> str:
    """Returns the end of a task's log, as a sentence for an error."""
    return f' Its log ends:\n{processes.end_of_log(self.read(task))}'

  def wait_for_line(
    self, task: spec_lib.Task, beginning: str, timeout_secs: float
  ) -> None:
    """Waits until a task has written a line with the given beginning.

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
