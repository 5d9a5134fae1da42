"""Registration of clients with servers, and the check for equal clusters.

A client is a process that computes with other tasks' servers: the chief in
coordinator mode, every worker in between-graph mode and in classic sessions. It
says hello before it connects and done at its orderly end; servers detect the
death of a client by probes.

A server without clients posts that it is about to end, and then checks for
hellos once more; a client says hello, and then checks for that notice. So
either the server gets the hello and stays, or the client sees that it ends.
"""

import atexit
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
import socket
import sys
import time

from absl import logging

from tfps import errors
from tfps._utils import deadlines
from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib
from tfps.server import broadcast
from tfps.server import health
from tfps.server import mailbox as mailbox_lib
from tfps.server import messages

ENDING = 'ending'  # the notice of a server that is about to end


class Registration:
  """Registers this process as a client of servers until its end.

  ```
  with Registration(cluster, task, address, chief=True, servers=servers):
    train()
  ```

  Without `with`, call `start`; the exit of the process calls `stop`. A program
  that dies of an exception does not say done, nor does one that is killed: its
  servers then wait for its return.

  Args:
    cluster: this process' specification, compared with each server's.
    task: this process' task.
    address: where this process' own TensorFlow server answers.
    chief: whether servers may end once this process is done.
    servers: the tasks to register with.
    listens: whether this process receives requests (`control_messages`).
    homes: returns the addresses of servers that are elsewhere than listed.
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
    homes: Callable[[], Mapping[spec_lib.Task, str]] = dict,
  ) -> None:
    self._cluster = cluster.with_task(task)
    self._homes = homes
    self._hello = messages.Hello(task, address, chief, listens=listens)
    self._servers = tuple(servers)
    # Servers that joined later, which the cluster does not list.
    self._joined: dict[spec_lib.Task, str] = {}
    self._started = False

  def start(self, without: Collection[spec_lib.Task] = ()) -> None:
    """Says hello; repeating it, as after a server's restart, is harmless.

    It must be called before this process connects to the servers: TensorFlow
    would wait without limit for a server that ends.

    Args:
      without: servers to skip, as their own process is lost.

    Raises:
      errors.UnreachableError: names the servers that did not answer, or are
        about to end.
      errors.ClusterMismatchError: a server has another cluster specification.
    """
    self.expect(without)
    if self._servers and not self._started:
      atexit.register(self._at_exit)
    self._started = True

  def expect(self, without: Collection[spec_lib.Task] = ()) -> None:
    """Says hello for a process that is yet to start or to return.

    See `start`; the exit of this process does not say done.
    """
    servers = [server for server in self._servers if server not in without]
    self._agree(servers)
    failures = broadcast.for_each(
      servers, self._greet, timeout_secs=timeouts.current().handshake_secs
    )
    if failures:
      raise errors.UnreachableError(
        f'{self._hello.task} could not register with its servers: '
        f'{broadcast.format_failures(failures)}.'
      ) from next(iter(failures.values()))

  def check(self, server: spec_lib.Task, address: str) -> None:
    """Checks that a server that joined later has the same cluster.

    Args:
      server: its task.
      address: where it listens.

    Raises:
      errors.UnreachableError: it does not answer.
      errors.ClusterMismatchError: it has another cluster specification.
      tf.errors.OpError: it has stopped answering.
    """
    self._compare(server, address)

  def add(self, server: spec_lib.Task, address: str) -> None:
    """Registers with a server that joined later, now and at each `start`.

    Args:
      server: its task.
      address: where it listens.

    Raises:
      errors.UnreachableError: it does not answer, or ends.
      tf.errors.OpError: it has stopped answering.
    """
    self._joined[server] = address
    self._greet(server)
    if server not in self._servers:
      self._servers = (*self._servers, server)

  def stop(self) -> None:
    """Says done, within seconds.

    Servers that do not get it are logged, unless all have ended already.
    """
    if self._started:
      self._forget()
      failures = broadcast.for_each(
        self._servers, self._leave, timeout_secs=timeouts.current().call_secs
      )
      if failures and not self._are_all_dead():
        logging.warning(
          '%s is done, but could not notify its servers: %s.',
          self._hello.task,
          broadcast.format_failures(failures),
        )

  def _agree(self, servers: Sequence[spec_lib.Task]) -> None:
    """Checks that servers are ready and have the same cluster.

    A server that runs `tfps.serve` is ready for several clients at once when it
    has posted its cluster. A server that posts nothing is not checked.
    """
    failures = broadcast.for_each(
      servers, self._compare, timeout_secs=timeouts.current().handshake_secs
    )
    for error in failures.values():
      if isinstance(error, errors.ClusterMismatchError):
        raise error
    if failures:
      raise errors.UnreachableError(
        f'{self._hello.task} could not compare clusters with its servers: '
        f'{broadcast.format_failures(failures)}.'
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
      new = self._homes().items()  # which others may not know
      known = {t: at for t, at in new if theirs.jobs['ps'].get(t.index) == at}
      joined = {**known, **self._joined, server: address}
      check_same_cluster(self._cluster_with(joined, theirs), theirs)

  def _cluster_with(
    self, joined: Mapping[spec_lib.Task, str], theirs: spec_lib.Cluster
  ) -> spec_lib.Cluster:
    """Returns the cluster with joined tasks where another one lists them."""
    cluster = self._cluster
    for task, address in joined.items():
      if task in theirs.tasks(task.job):
        cluster = cluster.with_address(task, address)
    return cluster

  def _greet(self, server: spec_lib.Task) -> None:
    address = self._address_of(server)
    with _open(server, address, timeouts.current().handshake_secs) as mailbox:
      mailbox.put(self._hello.to_json())
      _check_stays(server, mailbox)

  def _leave(self, server: spec_lib.Task) -> None:
    hello = self._hello
    done = messages.Done(hello.task, hello.address, hello.chief)
    with _open(
      server, self._address_of(server), timeouts.current().call_secs
    ) as mailbox:
      mailbox.put(done.to_json())

  def _are_all_dead(self) -> bool:
    return all(
      health.probe(server, self._address_of(server)).state is health.State.DEAD
      for server in self._servers
    )

  def _address_of(self, server: spec_lib.Task) -> str:
    elsewhere = {**self._homes(), **self._joined}
    return elsewhere.get(server) or self._cluster.address(server)

  def _forget(self) -> None:
    self._started = False
    atexit.unregister(self._at_exit)

  def _at_exit(self) -> None:
    if _program_failed():
      logging.warning(
        '%s ends with an error and does not tell its servers that it is done.',
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
  """Returns the chief or, in a cluster without one, worker 0."""
  has_chief = not cluster.jobs or spec_lib.CHIEF in cluster.tasks()
  return spec_lib.CHIEF if has_chief else spec_lib.Task('worker', 0)


def _open(
  server: spec_lib.Task, address: str, timeout_secs: float
) -> mailbox_lib.Mailbox:
  status = health.probe(server, address)
  if status.state is not health.State.ALIVE:
    raise errors.UnreachableError(str(status))
  return mailbox_lib.Mailbox(address, timeout_secs=timeout_secs)


def _check_stays(server: spec_lib.Task, mailbox: mailbox_lib.Mailbox) -> None:
  """Raises UnreachableError if a server ends although it got a hello."""
  deadline = deadlines.after(timeouts.current().probe_secs)
  while mailbox.read() == ENDING:
    if deadlines.is_over(deadline):
      raise errors.UnreachableError(f'{server} ends: its training is done.')
    time.sleep(timeouts.current().poll_secs)


def _program_failed() -> bool:
  """Returns whether the interpreter ends because of an exception.

  `sys.last_value` is the exception that ended the program. In an interactive
  session it is an earlier one, which ended nothing.
  """
  return hasattr(sys, 'last_value') and not hasattr(sys, 'ps1')


def check_same_cluster(
  mine: spec_lib.Cluster, theirs: spec_lib.Cluster
) -> None:
  """Checks that two tasks have the same cluster, as far as both know it.

  A task may know its own address by another name, or only its port. It may also
  know no other task of a job, as in TFJob's sparse form. And a worker that the
  other cluster does not list may have joined later, as may others that it
  knows. None of these is a mismatch; a different address or, otherwise, a
  different number of tasks is.

  Args:
    mine: the specification of this process, with its task.
    theirs: the specification of the other task, with that task.

  Raises:
    errors.ClusterMismatchError: names both sides' values.
  """
  for job in sorted(set(mine.jobs) & set(theirs.jobs)):
    for task in _tasks_to_compare(job, mine, theirs):
      if not _agree(task, mine, theirs):
        raise errors.ClusterMismatchError(
          f'{mine.task} and {theirs.task} disagree on {task}: '
          f'{_describe(task, mine)}; {_describe(task, theirs)}. '
          'Start all tasks with the same cluster.'
        )


def _tasks_to_compare(
  job: str, mine: spec_lib.Cluster, theirs: spec_lib.Cluster
) -> list[spec_lib.Task]:
  for one, other in ((mine, theirs), (theirs, mine)):
    if job == 'worker' and _has_joined_later(one.task, other):
      return list(other.tasks(job))
  return sorted({*mine.tasks(job), *theirs.tasks(job)})


def _has_joined_later(
  task: spec_lib.Task | None, cluster: spec_lib.Cluster
) -> bool:
  is_worker = task is not None and task.job == 'worker'
  return is_worker and task not in cluster.tasks('worker')


def _agree(
  task: spec_lib.Task,
  mine: spec_lib.Cluster,
  theirs: spec_lib.Cluster,
) -> bool:
  if not (_knows_about(task, mine) and _knows_about(task, theirs)):
    return True
  if task in (mine.task, theirs.task):
    return _is_known(task, mine) and _is_known(task, theirs)
  return (
    _is_known(task, mine)
    and _is_known(task, theirs)
    and _same_address(mine.address(task), theirs.address(task))
  )


def _knows_about(task: spec_lib.Task, cluster: spec_lib.Cluster) -> bool:
  """Returns whether the cluster lists other tasks of a task's job."""
  return any(known != cluster.task for known in cluster.tasks(task.job))


def _is_known(task: spec_lib.Task, cluster: spec_lib.Cluster) -> bool:
  return task in cluster.tasks(task.job)


def _same_address(one: str, other: str) -> bool:
  """Returns whether two addresses are the same port of the same host."""
  if one == other:
    return True
  return bool(_endpoints(one) & _endpoints(other))


def _endpoints(address: str) -> set[tuple[str, str]]:
  host, _, port = address.rpartition(':')
  try:
    found = socket.getaddrinfo(host.strip('[]'), None)
  except socket.gaierror:
    return {(host, port)}
  return {(str(sockaddr[0]), port) for *_, sockaddr in found}


def _describe(task: spec_lib.Task, cluster: spec_lib.Cluster) -> str:
  if _is_known(task, cluster):
    return f'{cluster.task} has it at {cluster.address(task)}'
  known = ', '.join(cluster.jobs[task.job].values())
  return f'{cluster.task} has the {task.job} tasks {known}'
