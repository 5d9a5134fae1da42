"""Output of tasks: shown line by line under their names, and kept in files."""

import collections
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import io
import os
import pathlib
import sys
import threading
from typing import BinaryIO
from typing import IO

from tfps._utils import private_files
from tfps.cluster import spec as spec_lib

_COLOURS = (36, 33, 32, 35, 34, 91, 96, 93, 92, 95)
_MAX_LINE_BYTES = 1 << 16
_LAST_LINES = 10


class TaskOutput:
  """Copies each task's output to a stream and to a file.

  Neither of them stops a task that writes: lines that one does not take, as on
  a full disk, are left out there, which is said once.

  Args:
    tasks: the tasks.
    folder: for files such as ps-0.log; created if missing, and files of an
      earlier run are emptied. None keeps no files and shows lines without
      prefixes, for a launcher of one task.
    has_prefixes: whether lines are shown with prefixes; by default where files
      are kept.
    appends: whether files of an earlier run are continued instead.
    stream: receives lines with prefixes such as `[ps:0] `; stdout by default.
    own_stream: receives the launcher's own lines; stderr by default.
    colour: whether each task's prefix has a colour.
    is_shown: whether a line is written to the stream; by default all are.

  Raises:
    ValueError: the folder cannot be made, or written to.
  """

  def __init__(
    self,
    tasks: Sequence[spec_lib.Task],
    folder: pathlib.Path | None,
    *,
    has_prefixes: bool | None = None,
    appends: bool = False,
    stream: BinaryIO | None = None,
    own_stream: BinaryIO | None = None,
    colour: bool = False,
    is_shown: Callable[[bytes], bool] = lambda line: True,
  ) -> None:
    self.folder = folder
    self._is_shown = is_shown
    self._stream = stream or sys.stdout.buffer
    self._own_stream = own_stream or sys.stderr.buffer
    self._prefixes = {
      task: _prefix(task, _COLOURS[i % len(_COLOURS)] if colour else None)
      for i, task in enumerate(tasks)
      if (bool(folder) if has_prefixes is None else has_prefixes)
    }
    self._last_lines: dict[spec_lib.Task, collections.deque[bytes]] = {
      task: collections.deque(maxlen=_LAST_LINES) for task in tasks
    }
    self._lock = threading.Lock()
    self._failed: set[str] = set()  # files and streams, by name
    try:
      if folder:
        private_files.make_folder(folder)
      for path in filter(None, map(self.path, tasks)):
        private_files.open_file(path, 'ab' if appends else 'wb').close()
    except OSError as error:
      raise ValueError(
        f'The output of tasks cannot be kept in {folder}: {error}. Give '
        'another folder as log_dir.'
      ) from error

  def path(self, task: spec_lib.Task) -> pathlib.Path | None:
    """Returns the file with a task's output, over all its starts, if any."""
    return self.folder and self.folder / f'{task.job}-{task.index}.log'

  def copy(self, task: spec_lib.Task, pipe: IO[bytes]) -> None:
    """Copies lines from a task's pipe until it ends, and closes it."""
    with pipe, self._open(self.path(task)) as file:
      while line := pipe.readline(_MAX_LINE_BYTES):
        try:
          file.write(line)
        except OSError as error:
          self._say_failed(str(file.name), error)
        line = line.removesuffix(b'\n') + b'\n'
        self._last_lines[task].append(line)
        if self._is_shown(line):
          self._write(self._stream, self._prefixes.get(task, b'') + line)

  def last_lines(self, task: spec_lib.Task) -> str:
    """Returns the last lines that a task has written."""
    return b''.join(self._last_lines[task]).decode(errors='replace')

  def say(self, text: str) -> None:
    """Writes a line of the launcher itself."""
    self._write(self._own_stream, f'[launch] {text}\n'.encode())

  def _write(self, stream: BinaryIO, text: bytes) -> None:
    try:
      with self._lock:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
      # SIGPIPE notifies the supervisor; the files are still written.
      _discard(stream)
    except BlockingIOError as error:
      self._say_failed('standard output', error)
    except OSError as error:
      # Else what the stream has buffered would fail again at the end.
      _discard(stream)
      self._say_failed('standard output', error)

  def _open(self, path: pathlib.Path | None) -> io.FileIO:
    try:
      return open(path or os.devnull, 'ab', buffering=0)
    except OSError as error:
      self._say_failed(str(path), error)
      return open(os.devnull, 'ab', buffering=0)

  def _say_failed(self, name: str, error: OSError) -> None:
    """Says once that lines are left out of a file or stream."""
    with self._lock:
      is_known = name in self._failed
      self._failed.add(name)
    if not is_known:
      self.say(f'Lines are left out of {name}: {error.strerror}. Tasks go on.')


def wants_colour(stream: IO[str], env: Mapping[str, str]) -> bool:
  """Returns whether a stream is shown in colour, see FORCE_COLOR, NO_COLOR."""
  wanted = stream.isatty() or bool(env.get('FORCE_COLOR'))
  return wanted and not env.get('NO_COLOR')


def _prefix(task: spec_lib.Task, colour: int | None) -> bytes:
  plain = f'[{task}]'
  shown = plain if colour is None else f'\x1b[{colour}m{plain}\x1b[0m'
  return f'{shown} '.encode()


def _discard(stream: BinaryIO) -> None:
  """Redirects a stream, with what it has buffered, to /dev/null."""
  with open(os.devnull, 'wb') as nowhere:
    os.dup2(nowhere.fileno(), stream.fileno())
