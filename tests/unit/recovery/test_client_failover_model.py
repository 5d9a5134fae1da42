"""Failover of ps that a chief and a worker share, under losses and delays."""

import functools
from types import SimpleNamespace
from unittest import mock

from hypothesis import settings
from hypothesis import stateful
import tensorflow as tf

from tests.support import failover
from tfps._utils import timeouts
from tfps.recovery import client_recovery
from tfps.recovery import client_repair
from tfps.recovery import stuck_calls
from tfps.server import task_registry


class _Client:
  """A process that trains; stands for its connection, snapshots and handles.

  Args:
    machine: what it is in.
    is_chief: whether it saves and restores the variables.

  Attributes:
    known: servers to which it is connected, as address and incarnation.
  """

  def __init__(self, machine, *, is_chief):
    self._machine, self._world = machine, machine.world
    self.inventory = SimpleNamespace(
      on=lambda ps: [], emptied=self._emptied, unsaved=[]
    )
    self.known = {}
    self._connections = {}  # their numbers, by ps
    self._handles = {}  # of which connections they are, by ps
    self.connect({('ps', ps): at for ps, at in self._world.listed.items()})
    self._handles = dict(self._connections)
    copies = failover.make_copies(
      self._world, self, saves=is_chief, is_shared=True
    )
    self.book = copies.address_book
    self.recovery = client_recovery.ClientRecovery(
      copies, greet=lambda hosted: None
    )

  def step(self):
    """Does a step, again after losses."""
    self.recovery.surviving(self._execute)

  def connect(self, moved):
    """Connects to the servers at the addresses of all ps."""
    self._world.sleep(0.02)
    found = {i: (at, self._world.server(at)) for (_, i), at in moved.items()}
    if any(server is None for _, server in found.values()):
      raise failover.lost()
    before, self.known = self.known, {}
    for ps, (at, server) in found.items():
      self.known[ps] = at, server.incarnation
      if before.get(ps) != self.known[ps]:
        self._connections[ps] = self._connections.get(ps, 0) + 1

  def servers(self):
    """The servers to which it is connected, by ps.

    Raises:
      tf.errors.UnavailableError: one is lost.
    """
    return [self._server(ps) for ps in self.known]

  def is_connected(self):
    """Whether it can reach all ps."""
    servers = [(self._world.server(at), n) for at, n in self.known.values()]
    return all(server and server.incarnation == n for server, n in servers)

  def _server(self, ps):
    """The server of a ps, once it is not frozen."""
    at, incarnation = self.known[ps]
    until = self._world.now + 2 * timeouts.current().stuck_every_secs
    while (server := self._world.server(at)) is None:
      if incarnation not in self._world.incarnations_left():
        break
      if self._world.now > until:
        raise tf.errors.CancelledError(None, None, '/job:ps is silent')
      self._world.sleep(0.5)
    if server is None or server.incarnation != incarnation:
      raise failover.lost()
    return server

  def _execute(self):
    attempt = self._machine.begin_attempt()
    for ps in self.known:
      server = self._server(ps)
      if self._handles[ps] != self._connections[ps] or server.value is None:
        raise tf.errors.FailedPreconditionError(None, None, 'no variable')
      server.value += 1
      self._world.sleep(0.02)
      if self._machine.has_replicas:
        self._write_replica(failover.twin_of(ps))
    self._machine.end_attempt(attempt)

  def _write_replica(self, ps):
    server = self._server(ps)
    if self._handles[ps] != self._connections[ps] or server.replica is None:
      raise tf.errors.FailedPreconditionError(None, None, 'no replica')
    server.replica += 1
    self._world.sleep(0.02)

  def _emptied(self):
    return {ps for ps in self.known if self._server(ps).value is None}

  # As replicas, which there are none of.

  def renew(self, variables, lost):
    del variables
    for ps in lost:
      self._handles[ps] = self._connections[ps]

  # As notes, of which that on the last ps is written last.

  def note_written(self, ps):
    if ps == failover.NUM_PS - 1:
      self._machine.end_restore()

  # As snapshots.

  def save(self):
    self._machine.saved = [server.value for server in self.servers()]

  def restore(self, ps, replicas):
    del replicas
    saved = None
    if not failover.have_all_of(ps, has_replicas=self._machine.has_replicas):
      self._machine.begin_restore()
      saved = self._machine.saved
    failover.restore(self._world, self._server, ps, saved)
    return 0.0

  def __getattr__(self, name):
    return lambda *args: None


class _Failover(failover.Faults):
  """Ps of a chief and a worker, of which each repairs what it can.

  Each step adds one to the variables of all ps, one after another. The chief
  sets all back to the last snapshot if one was lost.

  Attributes:
    saved: values of the variables in the last snapshot, by ps.
  """

  timed = (client_recovery, client_repair, task_registry)
  has_replicas = False

  def __init__(self):
    super().__init__()
    self.saved = self._restored = [0] * failover.NUM_PS
    self._num_restores = 0
    self._is_restored = True
    self._num_done = 0  # steps that began after the last restore
    self.patch(
      client_repair, 'server_def', SimpleNamespace(update=self._connect)
    )
    self.patch(
      client_repair.consistency_note_lib,
      'NoteReader',
      functools.partial(failover.NoteReader, self.world),
    )
    self.patch(stuck_calls.StuckCallCanceller, 'start', mock.Mock())
    for server in self.world.first_servers():
      server.value = server.replica = 0
    self._chief = _Client(self, is_chief=True)
    self._chief.recovery.surviving(lambda: None)
    self.worker = _Client(self, is_chief=False)

  def _connect(self, moved):
    client = self._chief if self.world.is_main() else self.worker
    client.connect(moved)

  def begin_attempt(self):
    return self._num_restores if self._is_restored else None

  def end_attempt(self, attempt):
    self._num_done += attempt == self._num_restores

  def begin_restore(self):
    self._is_restored = False
    self._num_restores += 1
    self._restored, self._num_done = self.saved, 0

  def end_restore(self):
    self._is_restored = True

  @stateful.rule()
  def chief_steps(self):
    until = self.world.now + failover.TIMEOUT_SECS
    self._chief.step()
    assert self.world.now < until, 'a repair has not ended in time'

  @stateful.rule()
  def chief_saves(self):
    if self._chief.is_connected():
      self._chief.save()

  def end(self, fiber):
    """Checks that the worker ends, then the variables.

    Args:
      fiber: in which it does its last steps.
    """
    self.world.sleep(60.0)
    if fiber.error is not None:
      raise fiber.error
    assert fiber.has_ended, 'the worker waits for ever'
    for ps, server in enumerate(self._chief.servers()):
      since = server.value - self._restored[ps]
      assert since >= self._num_done, f'steps are lost on ps:{ps}'

  def teardown(self):
    try:
      self.world.sleep(100.0)  # what is due is done, and all are back
      self.chief_steps()
      self.end_worker()
    finally:
      super().teardown()

  def end_worker(self):
    raise NotImplementedError


class BusyFailover(_Failover):
  """The worker does one step after the other."""

  def __init__(self):
    super().__init__()
    self._stops = False
    self._training = self.world.begin(self._train)

  def _train(self):
    while not self._stops:
      self.worker.step()
      self.world.sleep(0.1)

  def end_worker(self):
    self._stops = True
    self.end(self._training)


class IdleFailover(_Failover):
  """The worker does nothing for any time, in which any ps may be lost."""

  @stateful.rule()
  def worker_steps(self):
    self.world.sleep(40.0)  # in which losses are over
    self.chief_steps()
    self.end_worker()

  def idles_while_taken_over(self, *lost):
    """Lets other ps take over frozen ones, which thaw before the next step."""
    for ps in lost:
      self.freezes(ps=ps, after=0.0, secs=20.0)
    self.chief_steps()
    self.worker_steps()

  def end_worker(self):
    for _ in range(2):
      self.end(self.world.begin(self.worker.step))


def test_a_worker_that_was_idle_leaves_a_ps_that_thaws():
  """It has been taken over, and answers as if nothing had happened."""
  job = IdleFailover()
  job.idles_while_taken_over(0)
  job.teardown()


def test_a_worker_that_was_idle_leaves_all_ps_together():
  """They were in one process, and have notes of each other alone."""
  job = IdleFailover()
  job.idles_while_taken_over(0, 2)
  job.idles_while_taken_over(1)
  job.teardown()


def test_a_worker_learns_of_losses_from_ps_that_were_restarted():
  """The only ps that it knows has been taken over."""
  job = IdleFailover()
  job.is_killed(ps=0, after=0.0, away=0.0, elsewhere=True)
  job.freezes(ps=2, after=0.0, secs=1.5)
  job.chief_steps()
  job.is_killed(ps=1, after=0.0, away=0.0, elsewhere=True)
  job.teardown()


def test_a_ps_may_be_lost_again_while_the_chief_connects():
  """Notes name the process that has the variables."""
  job = BusyFailover()
  job.is_killed(ps=0, after=0.0, away=0.0, elsewhere=True)
  job.is_killed(ps=0, after=0.1, away=0.0, elsewhere=False)
  job.chief_steps()
  job.teardown()


class BusyFailoverWithReplicas(BusyFailover):
  """The same, where only the loss of two ps at once sets them back."""

  has_replicas = True


class IdleFailoverWithReplicas(IdleFailover):
  """The same, where only the loss of two ps at once sets them back."""

  has_replicas = True


for machine in (
  BusyFailover,
  IdleFailover,
  BusyFailoverWithReplicas,
  IdleFailoverWithReplicas,
):
  machine.TestCase.settings = settings(
    max_examples=40, stateful_step_count=12, deadline=None, derandomize=True
  )
test_failover_beside_a_busy_worker = BusyFailover.TestCase
test_failover_beside_an_idle_worker = IdleFailover.TestCase
test_replicas_beside_a_busy_worker = BusyFailoverWithReplicas.TestCase
test_replicas_beside_an_idle_worker = IdleFailoverWithReplicas.TestCase
