"""Tasks that join a running cluster: their requests, and their discovery."""

from collections.abc import Callable
from collections.abc import Mapping
import json
import time

from absl import logging
import tensorflow as tf

from tfps import errors
from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib
from tfps.server import control_messages
from tfps.server import health
from tfps.server import homes
from tfps.server import mailbox as mailbox_lib

_BOARD = 'tfps_joined_workers'

Addresses = Mapping[spec_lib.Task, str]


class Joining:
  """Tells other tasks of a task periodically while no client knows it.

  Clients say hello to the tasks of their cluster. A worker that has got no
  hello, or whose clients have all ended or restarted since, asks the ps to
  join. A ps may have come back at an address that the clients do not know, and
  tells it to all.

  Args:
    task: of this process.
    address: where its server listens.
    cluster: lists the others.
    clock: returns seconds, as `time.monotonic`.
    ask: finds a client's state, as `health.probe`.
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
    is_ps = task.job == 'ps'
    self._tell = homes.post if is_ps else control_messages.ask_to_join
    times = timeouts.current()
    self._pause = times.home_every_secs if is_ps else times.join_every_secs
    self._others = {
      other: cluster.address(other)
      for other in cluster.tasks(None if is_ps else 'ps')
      if other != task
    }
    self._clock = clock
    self._ask = ask
    self._next_look = clock() + timeouts.current().join_every_secs
    # The incarnations of clients that know this task.
    self._known_to: dict[spec_lib.Task, int | None] = {}

  def note_hello(self, client: spec_lib.Task, address: str) -> None:
    """Records that a client knows this task.

    Args:
      client: its task.
      address: where its server answers probes.
    """
    self._known_to[client] = self._find(client, address).incarnation

  def tend(self, clients: Mapping[spec_lib.Task, str]) -> None:
    """Tells the others if it is due and no client knows this task.

    Args:
      clients: the addresses of clients that have said hello and not done.
    """
    now = self._clock()
    if self._others and now >= self._next_look:
      self._next_look = now + self._pause
      if not any(self._is_client(*client) for client in clients.items()):
        self._tell(self._task, self._address, self._others)

  def _is_client(self, client: spec_lib.Task, address: str) -> bool:
    """Returns whether a client is alive and not restarted since its hello."""
    found = self._find(client, address)
    is_alive = found.state is health.State.ALIVE
    return is_alive and found.incarnation == self._known_to.get(client)

  def _find(self, client: spec_lib.Task, address: str) -> health.Status:
    return self._ask(client, address)


def post_joined(
  mailbox: mailbox_lib.Mailbox, clients: Addresses, cluster: spec_lib.Cluster
) -> None:
  """Posts the clients of a ps that its cluster does not list.

  Args:
    mailbox: of the ps.
    clients: the addresses of the clients that are not done.
    cluster: the ps' own specification.
  """
  listed = cluster.tasks()
  found = {str(c): address for c, address in clients.items() if c not in listed}
  if found or mailbox.read(_BOARD) is not None:
    mailbox.post(json.dumps(found), _BOARD)


def find_joined(servers: Addresses) -> set[spec_lib.Task]:
  """Returns joined workers that may be alive, according to the first ps found.

  Args:
    servers: the addresses of the ps.
  """
  for server, address in servers.items():
    if health.is_alive(server, address):
      try:
        with mailbox_lib.Mailbox(address) as mailbox:
          posted = json.loads(mailbox.read(_BOARD) or '{}')
      except tf.errors.OpError as error:  # lost since the probe
        logging.warning('%s: %s', server, errors.first_line(error))
        continue
      return health.may_be_alive(
        {spec_lib.Task.parse(name): at for name, at in posted.items()}
      )
  return set()
