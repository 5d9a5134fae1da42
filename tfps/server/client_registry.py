"""Registry of a server's clients, which decides when the server ends."""

from collections.abc import Callable
import dataclasses
import enum
import time

from absl import logging

from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib
from tfps.server import health
from tfps.server import messages

_LOOKS_BEFORE_WARNING = 2  # a client may be too busy to answer as it starts
_ALIVE = health.State.ALIVE


class Verdict(enum.Enum):
  """Reason why a server ends."""

  DONE = 'training is done'
  ABANDONED = 'no client is alive'
  DISMISSED = 'it was told to end'


@dataclasses.dataclass(frozen=True)
class _Client:
  task: spec_lib.Task
  address: str
  done_at: float | None = None
  listens: bool = False

  def may_need_us(self, now: float) -> bool:
    linger_secs = timeouts.current().linger_secs
    return self.done_at is None or now < self.done_at + linger_secs


class ClientRegistry:
  """Records clients' messages, and probes clients that send none.

  A server is done once the chief has said done and no other client is alive. It
  is abandoned when no client has been alive for `timeout_secs`.

  Args:
    timeout_secs: see above; None: never abandoned.
    clock: returns seconds, as `time.monotonic`.
    ask: finds a client's state, as `health.probe`.
  """

  def __init__(
    self,
    timeout_secs: float | None,
    *,
    clock: Callable[[], float] = time.monotonic,
    ask: Callable[..., health.Status] = health.probe,
  ) -> None:
    self._timeout_secs = float('inf') if timeout_secs is None else timeout_secs
    self._clock = clock
    self._ask = ask
    self._clients: dict[spec_lib.Task, _Client] = {}
    self._looks_left: dict[spec_lib.Task, int] = {}
    self._chief_done = False
    self._last_alive = clock()
    self._next_look = clock()

  def expect(self, task: spec_lib.Task, address: str) -> None:
    """Adds a client that has not said hello yet.

    Args:
      task: the client.
      address: where its server answers probes.
    """
    self._clients[task] = _Client(task, address)

  def hear_hello(self, hello: messages.Hello) -> None:
    """Records that a client begins."""
    client = _Client(hello.task, hello.address, listens=hello.listens)
    self._note(client, hello.chief, looks=_LOOKS_BEFORE_WARNING)
    logging.info('%s says hello.', client.task)

  def hear_done(self, done: messages.Done) -> None:
    """Records that a client is done, unless it is another process by now."""
    known = self._clients.get(done.task)
    if known is not None and known.address != done.address:
      logging.warning(
        '%s at %s says done, but is at %s by now.',
        done.task,
        done.address,
        known.address,
      )
      return
    client = _Client(done.task, done.address, done_at=self._clock())
    self._note(client, done.chief, looks=0)
    logging.info('%s says done.', client.task)

  def _note(self, client: _Client, is_chief: bool, *, looks: int) -> None:
    self._last_alive = self._next_look = self._clock()
    self._clients[client.task] = client
    self._looks_left[client.task] = looks
    if is_chief:
      self._chief_done = client.done_at is not None

  def clients(self) -> dict[spec_lib.Task, str]:
    """Returns the addresses of the clients that are not done."""
    return {
      client.task: client.address
      for client in self._clients.values()
      if client.done_at is None
    }

  def listening(self) -> dict[spec_lib.Task, str]:
    """Returns the addresses of those that receive requests of tasks."""
    clients = self.clients()
    return {t: at for t, at in clients.items() if self._clients[t].listens}

  def verdict(self) -> Verdict | None:
    """Returns why the server ends now, or None if it continues.

    Until the chief is done, clients are probed only from time to time.
    """
    now = self._clock()
    if now < self._next_look:
      return None
    state = self._best_state(now)
    if state is _ALIVE:
      self._last_alive = now
    self._next_look = now + (0 if self._chief_done else self._pause())
    if self._chief_done and state is health.State.DEAD:
      return Verdict.DONE
    if now < self._last_alive + self._timeout_secs:
      return None
    return Verdict.DONE if self._chief_done else Verdict.ABANDONED

  def _pause(self) -> float:
    every_secs = timeouts.current().client_probe_every_secs
    return min(every_secs, self._timeout_secs / 4)

  def _best_state(self, now: float) -> health.State:
    """Returns ALIVE if any client that may need us is; else HUNG if any is."""
    states = {health.State.DEAD}
    for client in self._clients.values():
      if client.may_need_us(now) and _ALIVE not in states:
        states.add(self._state(client))
    order = (_ALIVE, health.State.HUNG, health.State.DEAD)
    return next(state for state in order if state in states)

  def _state(self, client: _Client) -> health.State:
    status = self._ask(client.task, client.address)
    self._check_return_path(client, status.state)
    return status.state

  def _check_return_path(self, client: _Client, state: health.State) -> None:
    """Warns, once, of a client that does not answer at its stated address."""
    looks_left = self._looks_left.get(client.task, 0)
    self._looks_left[client.task] = 0 if state is _ALIVE else looks_left - 1
    if looks_left == 1 and state is not _ALIVE:
      logging.warning(
        '%s said hello, but at %s it is %r from here. Unless this changes, '
        'this server ends %g seconds from now as if the client were dead.',
        client.task,
        client.address,
        state.value,
        self._timeout_secs,
      )
