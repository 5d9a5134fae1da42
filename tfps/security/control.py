"""Connection by which a running haproxy takes commands."""

import os
import socket
import tempfile

from tfps._utils import timeouts

_PROMPT = b'\n> '  # that it waits for a command
_MAX_WAITING = 16  # connections to a frozen haproxy; each is of one command


class Control:
  """Sends commands to a haproxy that listens for them.

  The socket has no name by which others could connect. After an error, an
  answer could be that to an earlier command, so that the next command gets a
  connection of its own.

  Attributes:
    listener: for haproxy; close it once that has it.
  """

  def __init__(self) -> None:
    self.listener = socket.socket(socket.AF_UNIX)
    with tempfile.TemporaryDirectory(prefix='tfps-control-') as folder:
      path = f'{folder}/control'
      self.listener.bind(path)
      self.listener.listen(_MAX_WAITING)
      self._file = os.open(path, os.O_PATH)  # leads there without its name
    self._connection: socket.socket | None = None

  def connect(self) -> None:
    """Connects, unless it is connected, and waits until commands are taken.

    Raises:
      OSError: haproxy has ended, or does not answer.
    """
    if self._connection is None:
      self._connection = socket.socket(socket.AF_UNIX)
      self._connection.settimeout(0)
      try:
        self._connection.connect(f'/proc/self/fd/{self._file}')
      except OSError:
        self._disconnect()
        raise
      self._answer(b'prompt')  # without which it closes after a command

  def send(self, command: bytes, wanted: str) -> None:
    """Sends a command.

    Args:
      command: without the end of its line.
      wanted: a part of the answer if the command succeeds, in small letters.

    Raises:
      ValueError: haproxy gives another answer.
      OSError: it does not answer.
    """
    self.connect()
    answer = self._answer(command)
    if wanted not in answer.lower():
      raise ValueError(f'haproxy answers {answer!r} to {command[:40]!r}.')

  def close(self) -> None:
    """Closes the connection, for good."""
    self._disconnect()
    if self._file >= 0:
      os.close(self._file)
      self._file = -1

  def _disconnect(self) -> None:
    if self._connection is not None:
      self._connection.close()
      self._connection = None

  def _answer(self, command: bytes) -> str:
    """Returns what haproxy says until it waits for the next command."""
    connection = self._connection
    assert connection is not None
    connection.settimeout(timeouts.current().command_secs)
    answer = b''
    try:
      connection.sendall(command + b'\n')
      while not answer.endswith(_PROMPT):
        part = connection.recv(1 << 16)
        if not part:
          raise ConnectionError('haproxy has closed the connection')
        answer += part
    except OSError:
      self._disconnect()
      raise
    return answer.removesuffix(_PROMPT).decode()
