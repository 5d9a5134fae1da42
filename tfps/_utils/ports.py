"""Ports for servers that will be started soon."""

import errno
import fcntl
import functools
import os
import pathlib
import random
import tempfile
import threading

import portpicker

# The kernel gives outgoing connections ports from 32768 on, by default: one
# picked there may be gone by the time that a server has imported TensorFlow.
_RANGE = range(12_000, 32_000)
_LOCKED = (errno.EACCES, errno.EAGAIN)
_picked: set[int] = set()
_lock = threading.Lock()


def pick() -> int:
  """Returns a free port, another one each time.

  Ports that living processes of this user have picked are skipped: such a
  process may still try to reach a task that it knew at its port.
  """
  chance = random.SystemRandom()  # shuffling all of them takes 50 ms
  for port in (chance.choice(_RANGE) for _ in _RANGE):
    if take(port):
      return port
  return int(portpicker.pick_unused_port())


def take(port: int) -> bool:
  """Picks a port; returns False if it is not free, or has been picked."""
  with _lock:
    if port in _picked or not portpicker.is_port_free(port):
      return False
    if not _claim(port):
      return False
    _picked.add(port)
    return True


def is_free(port: int) -> bool:
  """Returns whether a server could listen there now."""
  return bool(portpicker.is_port_free(port))


def _claim(port: int) -> bool:
  """Reserves a port until this process ends; returns False if it is reserved.

  Where the file cannot be locked at all, every port counts as reserved by us.
  """
  try:
    fcntl.lockf(_claims(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
  except OSError as error:
    return error.errno not in _LOCKED
  return True


@functools.cache
def _claims() -> int:
  """Opens the file of which each port's byte is locked by the port's user."""
  path = pathlib.Path(tempfile.gettempdir()) / f'tfps-ports-{os.getuid()}'
  return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
