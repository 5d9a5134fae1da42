"""Temporary disks of a given size, and disks that are full for a while.

```
with small_disk(num_bytes=2**24) as folder:
  train(folder)
  with full_disk(folder):
    train(folder)
```

A disk is really filled: a ballast file takes all free space, so that writes
fail with ENOSPC. The file has no name, and a small disk is mounted by a process
that ends after this one, so that nothing remains even if this process is
killed.
"""

from collections.abc import Iterator
import contextlib
import errno
import os
import pathlib
import subprocess
import tempfile
import threading
import time

from tfps._utils import timeouts
from tfps.testing.chaos import rights

_COMMANDS = ('mount', 'umount', 'unshare')
_SIZED = 'mount -t tmpfs -o "size=$1,mode=700" tfps "$2"'
# Its input ends when this process closes it or is killed.
_HOLD = f'if {_SIZED}; then read -r line; umount --lazy "$2"; fi; rmdir "$2"'
_MOST_FREE_BYTES = 2**30
_CHUNK_BYTES = 2**20
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


def problem() -> str:
  """Returns why this machine cannot make small disks; empty if it can."""
  return rights.problem(
    takes_root='Mounting a small disk requires root.',
    commands=_COMMANDS,
    packages='mount and util-linux',
    trial=['unshare', '--mount', 'sh', '-c', _SIZED, 'sh', '65536', '/tmp'],
    refuses='This machine mounts no small disk',
  )


@contextlib.contextmanager
def small_disk(num_bytes: int) -> Iterator[pathlib.Path]:
  """Mounts a folder with a filesystem in memory; leaving removes it.

  Args:
    num_bytes: its size; files in it take this machine's memory.

  Yields:
    The folder.

  Raises:
    RuntimeError: this machine cannot mount it, see `problem`, or on leaving,
      unmount it.
    ValueError: num_bytes is not positive.
  """
  if not num_bytes > 0:
    raise ValueError(f'small_disk: num_bytes is {num_bytes}. Give more than 0.')
  if reason := problem():
    raise RuntimeError(reason)
  folder = pathlib.Path(tempfile.mkdtemp(prefix='tfps-disk-'))
  holder = subprocess.Popen(
    ['sh', '-c', _HOLD, 'sh', str(num_bytes), str(folder)],
    stdin=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    start_new_session=True,  # else a terminal's Ctrl-C ends it
  )
  _wait_until_mounted(folder, holder)
  try:
    yield folder
  finally:
    _, stderr = holder.communicate(timeout=timeouts.current().command_secs)
    if holder.returncode:
      raise RuntimeError(f'{folder} could not be unmounted: {stderr.strip()}')


@contextlib.contextmanager
def full_disk(
  directory: str | os.PathLike[str], *, max_free_bytes: int = _MOST_FREE_BYTES
) -> Iterator[None]:
  """Keeps the disk of a directory full while the context lasts.

  Space that is freed meanwhile is filled, too.

  Args:
    directory: an existing directory on the disk.
    max_free_bytes: how many bytes to fill at most, so that no large disk is
      filled by mistake.

  Raises:
    RuntimeError: on leaving; more than that became free meanwhile, and was not
      filled.
    ValueError: more than that is free; nothing was written.
  """
  status = os.statvfs(directory)
  free_bytes = status.f_bfree * status.f_frsize  # root's reserve included
  if free_bytes > max_free_bytes:
    raise ValueError(
      f'{os.fspath(directory)}: its disk has {free_bytes} bytes free, and at '
      f'most {max_free_bytes} are to be taken. Fill a small disk instead, as '
      'small_disk makes them.'
    )
  with tempfile.TemporaryFile(buffering=0, dir=directory) as file:
    ballast = _Ballast(file.fileno(), max_free_bytes)
    ballast.fill()
    with ballast.refilled():
      yield


class _Ballast:
  """Fills the free space of a disk with a file.

  Args:
    file: its descriptor.
    max_bytes: its maximal size.
  """

  def __init__(self, file: int, max_bytes: int) -> None:
    self._file = file
    self._max_bytes = max_bytes
    self._num_bytes = 0
    self._chunk = os.urandom(_CHUNK_BYTES)  # some filesystems compress
    self._stopping = threading.Event()
    self._error: Exception | None = None

  def fill(self) -> None:
    """Fills the free space to the last byte.

    Raises:
      RuntimeError: the file would exceed its maximal size.
    """
    num_bytes = len(self._chunk)
    while num_bytes:
      num_bytes = min(num_bytes, self._max_bytes + 1 - self._num_bytes)
      try:
        self._num_bytes += os.write(self._file, self._chunk[:num_bytes])
      except OSError as error:
        if error.errno not in _NO_SPACE:
          raise
        num_bytes //= 2
      if self._num_bytes > self._max_bytes:
        raise RuntimeError(
          f'More than {self._max_bytes} bytes have become free on the disk '
          'that is to be full.'
        )

  @contextlib.contextmanager
  def refilled(self) -> Iterator[None]:
    """Fills space that becomes free while the context lasts."""
    thread = threading.Thread(target=self._refill, name='tfps-full-disk')
    thread.start()
    try:
      yield
    finally:
      self._stopping.set()
      thread.join()
    if self._error is not None:
      raise self._error

  def _refill(self) -> None:
    try:
      while not self._stopping.wait(timeouts.current().short_poll_secs):
        self.fill()
    except Exception as error:
      self._error = error


def _wait_until_mounted(
  folder: pathlib.Path, holder: subprocess.Popen[str]
) -> None:
  deadline = time.monotonic() + timeouts.current().command_secs
  while not folder.is_mount():
    if holder.poll() is not None or time.monotonic() > deadline:
      _, stderr = holder.communicate(timeout=timeouts.current().command_secs)
      raise RuntimeError(f'{folder} could not be mounted: {stderr.strip()}')
    time.sleep(timeouts.current().short_poll_secs)
