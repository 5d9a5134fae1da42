"""Servers learn from their clients who uses them and when training is done.

A client is a process that computes with other tasks' servers: the chief in
coordinator mode, every worker in between-graph mode and in classic sessions.
It says hello before it connects and done at its orderly end; what it never
says, because it died, servers find out by probing it.

A server that has nobody left posts that it is about to end, and then looks for
hellos once more; a client says hello, and then looks for that. So either the
server has heard the client and stays, or the client knows that it does not.
"""

import atexit
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import json
import sys
import time

from absl import logging

from tfps import errors
from tfps._utils import deadlines
from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib
from tfps.server import agreement
from tfps.server import broadcast
from tfps.server import health
from tfps.server import mailbox as mailbox_lib

ENDING = 'ending'  # the notice of a server that is about to end


@dataclasses.dataclass(frozen=True)
class Message:
  """What a client tells a server.

  Attributes:
    task: the client.
    address: where the client's own server answers probes, as 'host:port'.
    chief: whether the end of training is the client's to announce.
    done: whether it says done; otherwise it says hello.
    listens: whether it hears what servers ask for.
  """

  task: spec_lib.Task
  address: str
  chief: bool
  done: bool = False
  listens: bool = False

  def to_json(self) -> str:
    return json.dumps(dataclasses.asdict(self))

  @classmethod
  def from_json(cls, text: str) -> 'Message':
    """The message that `to_json` wrote."""
    facts = json.loads(text)
    return cls(**{**facts, 'task': spec_lib.Task(**facts['task'])})


class Registration:
  """Tells servers that this process uses them and, at its end, that it is done.

  ```
  with Presence(cluster, task, address, chief=True, servers=servers):
    train()
  ```

  Without `with`, call `start` and let the end of the process do the rest. A
  program that dies of an exception does not say done, nor does one that is
  killed: its servers then wait for its return.

  Args:
    cluster: this process' idea of the cluster, compared with each server's.
    task: this process' task.
    address: where this process' own TensorFlow server answers.
    chief: whether servers may end once this process is done.
    servers: the tasks to tell.
    listens: whether this process hears what servers ask for; see `_requests`.
  """

  def __init__(
    self,
    cluster: spec_lib.Cluster,
    task: spec_lib.Task,
    address: str,
    *,
    chief: bool,
    servers: Sequence[spec_lib.Task],
    listens: bool = False,
  ) -> None:
    self._cluster = cluster.with_task(task)
    self._hello = Message(task, address, chief, listens=listens)
    self._servers = tuple(servers)
    # Servers that came later, which the cluster does not list.
    self._joined: dict[spec_lib.Task, str] = {}
    self._started = False

  def start(self, without: Collection[spec_lib.Task] = ()) -> None:
    """Says hello; again, for example after a server's restart, is harmless.

    To be called before this process connects to the servers: one that is about
    to end would not answer, and TensorFlow would wait for it without limit.

    Args:
      without: servers to pass over, as their own process is gone.

    Raises:
      errors.UnreachableError: names the servers that did not answer, or are
        about to end.
      errors.ClusterMismatchError: a server holds another idea of the cluster.
    """
    self.expect(without)
    if self._servers and not self._started:
      atexit.register(self._at_exit)
    self._started = True

  def expect(self, without: Collection[spec_lib.Task] = ()) -> None:
    """As `start`, of a process that is still to come, or to come back."""
    servers = [server for server in self._servers if server not in without]
    self._agree(servers)
    failures = broadcast.for_each(
      servers, self._greet, timeout_secs=timeouts.current().handshake_secs
    )
    if failures:
      raise errors.UnreachableError(
        f'{self._hello.task} could not say hello: {broadcast.say(failures)}.'
      ) from next(iter(failures.values()))

  def check(self, server: spec_lib.Task, address: str) -> None:
    """Makes sure that a server that came later means the same cluster.

    Raises:
      errors.UnreachableError: it does not answer.
      errors.ClusterMismatchError: it holds another idea of the cluster.
      tf.errors.OpError: it has stopped to answer.
    """
    self._compare(server, address)

  def add(self, server: spec_lib.Task, address: str) -> None:
    """Says hello to a server that came later, from now on as to all others.

    Raises:
      errors.UnreachableError: it does not answer, or ends.
      tf.errors.OpError: it has stopped to answer.
    """
    self._joined[server] = address
    self._greet(server)
    if server not in self._servers:
      self._servers = (*self._servers, server)

  def stop(self) -> None:
    """Says done, within seconds; servers that cannot hear it are logged."""
    if self._started:
      self._forget()
      failures = broadcast.for_each(
        self._servers, self._leave, timeout_secs=timeouts.current().call_secs
      )
      if failures:
        logging.warning(
          '%s is done, but could not say so: %s.',
          self._hello.task,
          broadcast.say(failures),
        )

  def _agree(self, servers: Sequence[spec_lib.Task]) -> None:
    """Makes sure that servers are ready and mean the same cluster.

    One that runs `tfps.serve` is ready for several clients at once when it has
    posted what it knows of the cluster. Who posts nothing is taken as it is.
    """
    failures = broadcast.for_each(
      servers, self._compare, timeout_secs=timeouts.current().handshake_secs
    )
    for error in failures.values():
      if isinstance(error, errors.ClusterMismatchError):
        raise error
    if failures:
      raise errors.UnreachableError(
        f'{self._hello.task} could not ask for the cluster: '
        f'{broadcast.say(failures)}.'
      ) from next(iter(failures.values()))

  def _compare(self, server: spec_lib.Task, address: str | None = None) -> None:
    address = address or self._address_of(server)
    with _open(server, address, timeouts.current().handshake_secs) as mailbox:
      notice = mailbox.read()
      if notice is None:  # it may be about to post one, or be a plain server
        time.sleep(timeouts.current().notice_secs)
        notice = mailbox.read()
    if notice not in (None, ENDING):
      theirs = spec_lib.Cluster.from_tf_config({'TF_CONFIG': notice})
      joined = {**self._joined, server: address}
      agreement.check(self._cluster_with(joined, theirs), theirs)

  def _cluster_with(
    self, joined: Mapping[spec_lib.Task, str], theirs: spec_lib.Cluster
  ) -> spec_lib.Cluster:
    """The cluster and those of who joined it that another one has, too."""
    workers = dict(self._cluster.jobs['worker'])
    workers |= {
      task.index: address
      for task, address in joined.items()
      if task in theirs.tasks('worker')
    }
    jobs = {**self._cluster.jobs, 'worker': workers}
    return dataclasses.replace(self._cluster, jobs=jobs)

  def _greet(self, server: spec_lib.Task) -> None:
    address = self._address_of(server)
    with _open(server, address, timeouts.current().handshake_secs) as mailbox:
      mailbox.put(self._hello.to_json())
      _check_stays(server, mailbox)

  def _leave(self, server: spec_lib.Task) -> None:
    done = dataclasses.replace(self._hello, done=True)
    with _open(
      server, self._address_of(server), timeouts.current().call_secs
    ) as mailbox:
      mailbox.put(done.to_json())

  def _address_of(self, server: spec_lib.Task) -> str:
    return self._joined.get(server) or self._cluster.address(server)

  def _forget(self) -> None:
    self._started = False
    atexit.unregister(self._at_exit)

  def _at_exit(self) -> None:
    if _program_failed():
      logging.warning(
        '%s ends with an error: its servers are not told that it is done.',
        self._hello.task,
      )
    else:
      self.stop()

  def __enter__(self) -> 'Registration':
    self.start()
    return self

  def __exit__(self, exc_type: object, *exc_info: object) -> None:
    if exc_type is None:
      self.stop()
    else:
      self._forget()


def chief_of(cluster: spec_lib.Cluster) -> spec_lib.Task:
  """The chief or, in a cluster without one, worker 0."""
  chief = spec_lib.Task('chief', 0)
  has_chief = not cluster.jobs or chief in cluster.tasks()
  return chief if has_chief else spec_lib.Task('worker', 0)


def _open(
  server: spec_lib.Task, address: str, timeout_secs: float
) -> mailbox_lib.Mailbox:
  status = health.probe(server, address)
  if status.state is not health.State.ALIVE:
    raise errors.UnreachableError(str(status))
  return mailbox_lib.Mailbox(server, address, timeout_secs=timeout_secs)


def _check_stays(server: spec_lib.Task, mailbox: mailbox_lib.Mailbox) -> None:
  """Raises UnreachableError if a server ends although it was said hello to."""
  deadline = deadlines.after(timeouts.current().probe_secs)
  while mailbox.read() == ENDING:
    if deadlines.is_over(deadline):
      raise errors.UnreachableError(f'{server} ends: its training is done.')
    time.sleep(timeouts.current().poll_secs)


def _program_failed() -> bool:
  """Whether the interpreter ends because of an exception.

  It keeps the exception that ended the program in `sys.last_value`. In an
  interactive session that is some earlier one, which ended nothing.
  """
  return hasattr(sys, 'last_value') and not hasattr(sys, 'ps1')
