"""By which a worker has another one of its host push what it has."""

from collections.abc import Sequence
import socket

import numpy as np

from tfps.hosts import memory as memory_lib
from tfps.hosts import messages


class Link:
  """To another worker's post.

  Nobody is waited for at the beginning: what has not welcomed this worker, for
  it is not there, dead or frozen, is no use yet.

  Args:
    address: of the post.
    worker: the number of this one.
  """

  def __init__(self, address: str, worker: int) -> None:
    self._address = address
    self._worker = worker
    self._memory = memory_lib.Memory()
    self._socket: socket.socket | None = None
    self._is_welcome = False
    self._sent = 0  # the number of the memory that the other end has got

  def is_ready(self) -> bool:
    """Whether the other worker takes what is offered, as far as is known."""
    if self._socket is not None and self._is_gone():
      self.close()
    if self._socket is None:
      self._connect()
    return self._is_welcome

  def offer(
    self,
    turn: messages.Turn,
    arrays: Sequence[np.ndarray],
    timeout_secs: float,
  ) -> bool:
    """Offers arrays; whether they have been pushed.

    If they may have been, but nobody says so, they have not.

    Raises:
      TimeoutError: the other worker has not answered.
    """
    assert self._socket is not None
    described = tuple(self._memory.write(arrays))
    number, descriptor = self._memory.number, self._memory.descriptor
    offer = messages.Offer(self._worker, turn, described)
    try:
      self._socket.settimeout(timeout_secs)
      messages.send_offer(
        self._socket, offer, None if number == self._sent else descriptor
      )
      self._sent = number
      answer = self._socket.recv(1)
    except TimeoutError:
      self.close()  # which takes the offer back
      raise
    except OSError:
      answer = b''
    if not answer:
      self.close()
    return answer == messages.TAKEN

  def close(self) -> None:
    """Says that nothing more is offered; twice is harmless."""
    if self._socket is not None:
      self._socket.close()
    self._socket, self._is_welcome, self._sent = None, False, 0
    # Somebody who is frozen may yet come to read what was there.
    self._memory.close()

  def _connect(self) -> None:
    connecting = messages.new_socket()
    connecting.setblocking(False)
    try:
      connecting.connect(self._address)
      if messages.is_own_users(connecting):
        messages.send_offer(connecting, messages.Offer(self._worker), None)
        self._socket, connecting = connecting, messages.new_socket()
    except OSError:  # nobody is there, or does not take in anyone
      pass
    finally:
      connecting.close()

  def _is_gone(self) -> bool:
    """Looks whether anything has come; only welcomes do, or the end."""
    assert self._socket is not None
    self._socket.setblocking(False)
    try:
      word = self._socket.recv(1)
    except BlockingIOError:
      return False
    except OSError:
      return True
    self._is_welcome = self._is_welcome or word == messages.WELCOME
    return not word
