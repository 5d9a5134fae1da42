"""Where the gradients of a host's other workers come to the one that pushes."""

from collections.abc import Mapping
import contextlib
import dataclasses
import mmap
import selectors
import socket
import threading
import time

from absl import logging
import numpy as np

from tfps.hosts import memory
from tfps.hosts import messages
from tfps.hosts.messages import Turn

_JOIN_SECS = 10.0
_NEVER = Turn(-1, -1, -1)


@dataclasses.dataclass(frozen=True)
class Given:
  """A worker's gradients, where the worker has them.

  Attributes:
    worker: its number.
    arrays: to be read only, and before the worker is told anything.
  """

  worker: int
  arrays: list[np.ndarray]


@dataclasses.dataclass(eq=False)
class _Guest:
  """Another worker, at the other end of a connection."""

  socket: socket.socket
  worker: int = -1
  mapped: mmap.mmap | None = None
  offer: messages.Offer | None = None  # that has not been answered
  last: Turn = _NEVER  # that it has offered anything for
  is_expected: bool = False

  @property
  def turn(self) -> Turn | None:
    return self.offer.turn if self.offer else None

  def answer(self, word: bytes) -> None:
    self.offer = None
    messages.say(self.socket, word)


class Post:
  """Takes the offers of other workers, in a thread of its own.

  Whoever has offered before is waited for. An offer for a turn that is over is
  answered at once.

  Args:
    address: where others find it.
    names: of workers, by their numbers.
  """

  def __init__(self, address: str, names: Mapping[int, str]) -> None:
    self._address = address
    self._names = names
    self._changed = threading.Condition()
    self._hosted_tasks: dict[
      int, _Guest
    ] = {}  # by the descriptors of their sockets
    self._taken: list[_Guest] = []
    self._over = _NEVER
    self._selector: selectors.BaseSelector | None = None
    self._waker: socket.socket | None = None
    self._thread: threading.Thread | None = None

  def open(self) -> None:
    """Begins to take offers; twice is harmless.

    If somebody else has the address, nobody comes here, and this worker pushes
    for itself.
    """
    if self._thread is not None:
      return
    listener = messages.new_socket()
    try:
      listener.bind(self._address)
    except OSError as error:
      listener.close()
      logging.log_first_n(
        logging.WARNING,
        'Gradients of this host come together without this worker, whose '
        'address %r is taken: %s',
        1,
        self._address,
        error,
      )
      return
    listener.listen()
    listener.setblocking(False)
    self._waker, asleep = socket.socketpair()
    self._selector = selectors.DefaultSelector()
    for each in (listener, asleep):
      self._selector.register(each, selectors.EVENT_READ)
    self._thread = threading.Thread(
      target=self._run, args=[listener, asleep], name='tfps-host', daemon=True
    )
    self._thread.start()

  def close(self) -> None:
    """Takes no more offers; those without an answer are pushed alone."""
    thread, self._thread = self._thread, None
    if thread is None:
      return
    assert self._waker is not None
    self._waker.close()
    thread.join(_JOIN_SECS)

  def pass_over(self, turn: Turn) -> None:
    """Has nobody offer anything for a turn, or for one before it."""
    with self._changed:
      self._over = max(self._over, turn)
      self._dismiss(turn)

  def collect(self, turn: Turn, timeout_secs: float) -> list[Given]:
    """What all who are expected have for a turn; then it is over.

    Who does not come in time is named in the log, and not expected again until
    it has offered something. What is collected is to be answered.
    """
    deadline = time.monotonic() + timeout_secs
    with self._changed:
      self._answer(messages.ALONE)  # what was cut short
      self._dismiss(turn, but_for=turn)
      while missing := self._missing(turn):
        secs = deadline - time.monotonic()
        if secs <= 0:
          self._do_without(missing, timeout_secs)
          break
        self._changed.wait(secs)
      self._over = max(self._over, turn)
      self._taken = sorted(
        (guest for guest in self._hosted_tasks.values() if guest.turn == turn),
        key=lambda guest: guest.worker,
      )
      return [Given(guest.worker, _arrays(guest)) for guest in self._taken]

  def answer(self, *, is_taken: bool) -> None:
    """Tells those of whom something was collected what has become of it."""
    with self._changed:
      self._answer(messages.TAKEN if is_taken else messages.ALONE)

  def _answer(self, word: bytes) -> None:
    taken, self._taken = self._taken, []
    for guest in taken:
      guest.answer(word)

  def _missing(self, turn: Turn) -> list[_Guest]:
    """Who is expected and has offered nothing for the turn, nor since."""
    return [
      guest
      for guest in self._hosted_tasks.values()
      if guest.is_expected and guest.last < turn
    ]

  def _dismiss(self, turn: Turn, but_for: Turn | None = None) -> None:
    for guest in self._hosted_tasks.values():
      own = guest.turn
      if own is not None and own <= turn and own != but_for:
        guest.answer(messages.ALONE)

  def _do_without(self, missing: list[_Guest], secs: float) -> None:
    logging.warning(
      'Of this host, %s had no gradients to add within %.0f seconds; those of '
      'the others are pushed without.',
      ', '.join(self._name(guest) for guest in missing),
      secs,
    )
    for guest in missing:
      guest.is_expected = False

  def _name(self, guest: _Guest) -> str:
    # One that has joined later is not among them.
    return self._names.get(guest.worker, f'the worker {guest.worker}')

  # In the thread.

  def _run(self, listener: socket.socket, asleep: socket.socket) -> None:
    assert self._selector is not None
    with listener, asleep, self._selector:
      while True:
        for key, _ in self._selector.select():
          if key.fileobj is asleep:
            return self._end()
          if key.fileobj is listener:
            self._accept(listener)
          else:
            self._hear(self._hosted_tasks[key.fd])

  def _end(self) -> None:
    with self._changed:
      for guest in self._hosted_tasks.values():
        guest.socket.close()
      self._hosted_tasks.clear()
      self._taken.clear()
      self._changed.notify_all()

  def _accept(self, listener: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it is gone again
      connected, _ = listener.accept()
      connected.setblocking(False)
      if not messages.is_own_users(connected):
        return connected.close()
      assert self._selector is not None
      self._selector.register(connected, selectors.EVENT_READ)
      with self._changed:
        self._hosted_tasks[connected.fileno()] = _Guest(connected)

  def _hear(self, guest: _Guest) -> None:
    try:
      offer, mapped = messages.receive_offer(guest.socket)
    except BlockingIOError:
      return
    except (OSError, ValueError):  # it is gone, or is nobody of ours
      offer, mapped = None, None
    with self._changed:
      if offer is None:
        self._forget(guest)
      else:
        self._take(guest, offer, mapped)
      self._changed.notify_all()

  def _take(
    self, guest: _Guest, offer: messages.Offer, mapped: mmap.mmap | None
  ) -> None:
    guest.worker = offer.worker
    guest.mapped = mapped or guest.mapped
    if offer.turn is None:
      return messages.say(guest.socket, messages.WELCOME)
    guest.offer, guest.last, guest.is_expected = offer, offer.turn, True
    if offer.turn <= self._over:
      guest.answer(messages.ALONE)

  def _forget(self, guest: _Guest) -> None:
    assert self._selector is not None
    self._selector.unregister(guest.socket)
    del self._hosted_tasks[guest.socket.fileno()]
    guest.socket.close()


def _arrays(guest: _Guest) -> list[np.ndarray]:
  assert guest.offer is not None
  return memory.read(guest.mapped, guest.offer.described)
