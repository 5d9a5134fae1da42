"""Observations of tasks: what each does and waits for, its stacks and metrics.

An observer puts a request into the mailbox of a task. The thread that hears the
task's messages posts an observation with the request's number as a notice on
the task's own server, where the observer reads it. So observers need no server,
and a task whose training thread stands still answers, too.

There are some places for notices, of which an observer chooses one at random:
two that have the same place both ask again, until their time is over.
"""

from collections.abc import Mapping
import dataclasses
import json
import os
import random
import socket
import time
from typing import Any

import tensorflow as tf

from tfps import errors
from tfps._utils import deadlines
from tfps._utils import threads
from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib
from tfps.monitor import activities
from tfps.monitor import registry as registry_lib
from tfps.monitor import writers
from tfps.server import health
from tfps.server import mailbox as mailbox_lib
from tfps.server import messages

_NUM_PLACES = 16
_MAX_AT_ONCE = 32

Addresses = Mapping[spec_lib.Task, str]


@dataclasses.dataclass(frozen=True)
class Observation:
  """State of a process at one moment, as it tells it itself.

  Attributes:
    task: its task.
    host: the name of its machine.
    pid: its process id there.
    at: the moment, by its `time.time`.
    activities: what its threads do or wait for: what, the thread's name, and
      for how many seconds.
    events: the latest losses and returns of tasks that it has noticed, with
      their times, oldest first.
    metrics: its metrics, as `writers.as_json` gives them.
    stacks: the Python stacks of its threads, if they were asked for.
    cluster: its cluster as `TF_CONFIG`; empty for a process that trains.
    clients: addresses of the processes that train with it, by name.
  """

  task: str
  host: str
  pid: int
  at: float
  activities: list[tuple[str, str, float]]
  events: list[tuple[float, str]]
  metrics: list[dict[str, Any]]
  stacks: str = ''
  cluster: str = ''
  clients: dict[str, str] = dataclasses.field(default_factory=dict)

  @property
  def last_event(self) -> str:
    """The last of the events; '' if there is none."""
    return self.events[-1][1] if self.events else ''

  def addresses(self) -> dict[spec_lib.Task, str]:
    """Returns the addresses of all tasks that it knows."""
    found = {}
    if self.cluster:
      cluster = spec_lib.Cluster.from_tf_config({'TF_CONFIG': self.cluster})
      found = {task: cluster.address(task) for task in cluster.tasks()}
    known = {spec_lib.Task.parse(t): at for t, at in self.clients.items()}
    return {**found, **known}


def of_process(
  *,
  has_stacks: bool,
  cluster: str = '',
  clients: Addresses | None = None,
) -> Observation:
  """Returns the observation of this process.

  Args:
    has_stacks: whether it has the stacks of all threads.
    cluster: the cluster as `TF_CONFIG`, if this process serves.
    clients: the addresses of its clients.
  """
  registry, now = registry_lib.of_process(), time.monotonic()
  return Observation(
    task=str(registry.task),
    host=socket.gethostname(),
    pid=os.getpid(),
    at=time.time(),
    activities=[
      (each.what, each.thread, round(now - each.since, 3))
      for each in registry.activities()
    ],
    events=registry.events(),
    metrics=[writers.as_json(sample, {}) for sample in registry.collect()],
    stacks=activities.stacks() if has_stacks else '',
    cluster=cluster,
    clients={str(task): at for task, at in (clients or {}).items()},
  )


def answer(
  request: messages.Observe,
  *,
  cluster: str = '',
  clients: Addresses | None = None,
) -> tuple[str, str]:
  """Returns the notice that answers a request, and the name of its place.

  Args:
    request: from this process' mailbox.
    cluster: as for `of_process`.
    clients: as for `of_process`.

  Returns:
    The arguments of `Mailbox.post`.
  """
  found = of_process(
    has_stacks=request.has_stacks, cluster=cluster, clients=clients
  )
  facts = {'number': request.number, **dataclasses.asdict(found)}
  return json.dumps(facts), _place(request.number)


def observe(
  task: spec_lib.Task,
  address: str,
  *,
  has_stacks: bool = False,
  timeout_secs: float | None = None,
  mailboxes: mailbox_lib.Mailboxes | None = None,
) -> Observation | str:
  """Asks a task for an observation.

  Args:
    task: the task.
    address: of its server.
    has_stacks: whether the observation is to have stacks.
    timeout_secs: how long to wait; None for the default.
    mailboxes: connections to use; None opens one, and closes it.

  Returns:
    The observation, or why there is none, such as 'is unreachable'.
  """
  if timeout_secs is None:
    timeout_secs = timeouts.current().call_secs
  deadline = deadlines.after(timeout_secs)
  status = health.probe(
    task, address, timeout_secs=min(timeout_secs, timeouts.current().probe_secs)
  )
  if status.state is not health.State.ALIVE:
    return status.detail
  number = random.SystemRandom().getrandbits(60)
  request = messages.Observe(number, has_stacks)
  try:
    with (
      mailbox_lib.Mailbox(address, timeout_secs=timeout_secs)
      if mailboxes is None
      else mailboxes.at(address, status.incarnation, timeout_secs)
    ) as mailbox:
      mailbox.put(request.to_json())
      # Each look takes time of the task: it will have read the request by then.
      time.sleep(min(timeouts.current().listen_every_secs, timeout_secs / 2))
      while not deadlines.is_over(deadline):
        facts = json.loads(mailbox.read(_place(number)) or '{}')
        if facts.pop('number', None) == number:
          return Observation(**facts)
        time.sleep(timeouts.current().poll_secs)
  except tf.errors.OpError as error:
    return f'cannot be asked: {errors.first_line(error)}'
  return (
    'answers probes, but not the request to tell what it does: it is not '
    'served by tfps, has not connected, or its interpreter is blocked'
  )


def observe_all(
  addresses: Addresses,
  *,
  has_stacks: bool = False,
  timeout_secs: float | None = None,
  mailboxes: mailbox_lib.Mailboxes | None = None,
) -> dict[spec_lib.Task, Observation | str]:
  """Asks many tasks at once; see `observe`.

  Args:
    addresses: of the tasks' servers.
    has_stacks: as for `observe`.
    timeout_secs: as for `observe`.
    mailboxes: as for `observe`.
  """
  found = threads.map_all(
    'tfps-observe',
    lambda at: observe(
      *at,
      has_stacks=has_stacks,
      timeout_secs=timeout_secs,
      mailboxes=mailboxes,
    ),
    addresses.items(),
    at_once=_MAX_AT_ONCE,
  )
  return dict(zip(addresses, found, strict=True))


def observe_job(
  known: Addresses,
  *,
  has_stacks: bool = False,
  timeout_secs: float | None = None,
  here: Mapping[spec_lib.Task, Observation] | None = None,
  mailboxes: mailbox_lib.Mailboxes | None = None,
) -> tuple[dict[spec_lib.Task, Observation | str], dict[spec_lib.Task, str]]:
  """Observes known tasks, and all those that they know.

  Args:
    known: addresses of some tasks of a job.
    has_stacks: as for `observe`.
    timeout_secs: as for `observe`; twice as long in all.
    here: observations of tasks of this process. They are not asked: a session
      with a server of this process can crash it.
    mailboxes: as for `observe`.

  Returns:
    The observations and the addresses of all tasks.
  """
  found: dict[spec_lib.Task, Observation | str] = {**(here or {})}

  def observe_others(addresses: Addresses) -> None:
    others = {task: at for task, at in addresses.items() if task not in found}
    found.update(
      observe_all(
        others,
        has_stacks=has_stacks,
        timeout_secs=timeout_secs,
        mailboxes=mailboxes,
      )
    )

  observe_others(known)
  addresses = dict(known)
  for each in found.values():
    if isinstance(each, Observation):
      addresses = {**each.addresses(), **addresses}
  observe_others(addresses)
  return dict(sorted(found.items())), addresses


def _place(number: int) -> str:
  return f'tfps_observed_{number % _NUM_PLACES}'
