"""Has a worker asked for until somebody trains with it."""

from collections.abc import Callable
from collections.abc import Mapping
import time

from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib
from tfps.server import control_messages
from tfps.server import health


class Joining:
  """Asks the ps, now and then, to have a worker taken in.

  Whoever trains says hello to the workers of its cluster. A worker that has
  heard nobody, or whose last client is gone or was started again, asks.

  Args:
    task: of this process; one that is no worker never asks.
    address: where its server listens.
    cluster: with the ps.
    clock: seconds, as `time.monotonic`.
    ask: finds a client's state, as `tfps.probe.probe`.
  """

  def __init__(
    self,
    task: spec_lib.Task,
    address: str,
    cluster: spec_lib.Cluster,
    *,
    clock: Callable[[], float] = time.monotonic,
    ask: Callable[..., health.Status] = health.probe,
  ) -> None:
    self._task = task
    self._address = address
    self._servers = {
      ps: cluster.address(ps)
      for ps in cluster.tasks('ps')
      if task.job == 'worker'
    }
    self._clock = clock
    self._ask = ask
    self._next_look = clock() + timeouts.current().join_every_secs
    # The incarnations of clients that know this worker.
    self._known_to: dict[spec_lib.Task, int | None] = {}

  def note_hello(self, client: spec_lib.Task, address: str) -> None:
    """Takes note that a client knows this worker."""
    self._known_to[client] = self._find(client, address).incarnation

  def tend(self, clients: Mapping[spec_lib.Task, str]) -> None:
    """Asks if it is time to, and nobody trains with this worker.

    Args:
      clients: those that have said hello and not done, with their addresses.
    """
    now = self._clock()
    if self._servers and now >= self._next_look:
      self._next_look = now + timeouts.current().join_every_secs
      if not any(self._is_client(*client) for client in clients.items()):
        control_messages.ask_to_join(self._task, self._address, self._servers)

  def _is_client(self, client: spec_lib.Task, address: str) -> bool:
    """Whether a client lives, and is the one that has said hello."""
    # It may just be busy; if it is gone, nobody hears what is asked for.
    found = self._find(client, address)
    is_alive = found.state is health.State.ALIVE
    return is_alive and found.incarnation == self._known_to.get(client)

  def _find(self, client: spec_lib.Task, address: str) -> health.Status:
    return self._ask(client, address)
