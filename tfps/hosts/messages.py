"""What workers of a host tell each other, by sockets without a file.

Such a socket has a name that is known on one host, or in one network namespace
of it, and is gone with the process that has it.
"""

import array
import contextlib
import dataclasses
import json
import mmap
import os
import socket
import struct
from typing import Any

from tfps.hosts import memory

# What a post says: that it is there, that a gradient is on the ps together with
# others, and that it is not, so that its worker is to push it alone.
WELCOME, TAKEN, ALONE = b'w', b't', b'a'

_MOST_BYTES = 1 << 18
_CREDENTIALS = struct.Struct('3i')  # process, user, group


@dataclasses.dataclass(frozen=True, order=True)
class Turn:
  """What gradients are of.

  Attributes:
    step: the version of the first point at which the step began.
    point: within it.
    version: of the parameters by which they were computed.
  """

  step: int
  point: int
  version: int


@dataclasses.dataclass(frozen=True)
class Offer:
  """Says that gradients are there to be read.

  Attributes:
    worker: whose they are.
    turn: of which.
    described: how to read them in the worker's memory; nothing at first, when
      the worker only makes itself known.
  """

  worker: int
  turn: Turn | None = None
  described: tuple[memory.Description, ...] = ()

  def encoded(self) -> bytes:
    return json.dumps(dataclasses.astuple(self)).encode()

  @classmethod
  def decoded(cls, message: bytes) -> 'Offer':
    worker, turn, described = json.loads(message)
    return cls(
      worker,
      None if turn is None else Turn(*turn),
      tuple((name, shape) for name, shape in described),
    )


def new_socket() -> socket.socket:
  """One that keeps messages apart, and tells when the other end is gone."""
  made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
  made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST_BYTES)
  return made


def address(job: str, worker: int) -> str:
  """That of a worker's post."""
  return f'\0tfps/{job}/{worker}'


def is_own_users(connected: socket.socket) -> bool:
  """Whether the other end is a process of the same user."""
  found = connected.getsockopt(
    socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
  )
  return _CREDENTIALS.unpack(found)[1] == os.geteuid()


def send_offer(to: socket.socket, offer: Offer, descriptor: int | None) -> None:
  """Sends an offer, and what the other end needs to read memory.

  Raises:
    OSError: the other end is gone.
  """
  rights: list[Any] = []
  if descriptor is not None:
    held = array.array('i', [descriptor])
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, held)]
  to.sendmsg([offer.encoded()], rights)


def receive_offer(
  connected: socket.socket,
) -> tuple[Offer | None, mmap.mmap | None]:
  """An offer, and the memory that came with it; no offer if the end is gone.

  Raises:
    OSError: the other end is gone.
    ValueError: what has come is no offer.
  """
  message, descriptors, *_ = socket.recv_fds(connected, _MOST_BYTES, 1)
  opened = None
  for descriptor in descriptors:
    opened = memory.opened(descriptor)
    os.close(descriptor)
  return (Offer.decoded(message) if message else None), opened


def say(to: socket.socket, word: bytes) -> None:
  """Says something to who may be gone."""
  with contextlib.suppress(OSError):
    to.send(word, socket.MSG_DONTWAIT)
