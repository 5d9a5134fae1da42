"""Failover of a coordinator's ps, under random losses, delays and returns.

The address book, the repair and the chief's recovery are the real ones. Tasks,
their variables, the network and the clock are not.
"""

import dataclasses
import functools
import itertools
import tempfile
import threading
from types import SimpleNamespace
from unittest import mock

from hypothesis import settings
from hypothesis import stateful
from hypothesis import strategies as st
import tensorflow as tf

from tfps import errors
from tfps._utils import deadlines
from tfps._utils import quiesce_lock
from tfps.cluster import spec
from tfps.recovery import config
from tfps.recovery import consistency_note
from tfps.recovery import coordinator_recovery
from tfps.recovery import copies as copies_lib
from tfps.recovery import ps_repair
from tfps.recovery import repair_engine
from tfps.server import health
from tfps.server import ps_addresses

_NUM_PS = 3
_PS = st.integers(0, _NUM_PS - 1)
_SECS = st.sampled_from([0.0, 0.1, 0.5, 1.5, 4.0, 20.0])
_TAKE_OVER_SECS, _TIMEOUT_SECS = 1.0, 600.0
# For snapshots, of which there are none: another object stands for them.
_FOLDER = tempfile.TemporaryDirectory()


@dataclasses.dataclass
class _Server:
  """A server of a ps, in its own process or in that of another ps.

  Attributes:
    task: the ps.
    incarnation: of the server.
    value: of its variables, the number of steps; None before it has any.
    note: the consistency note on it.
  """

  task: spec.Task
  incarnation: int
  value: int | None = None
  note: str | None = None


@dataclasses.dataclass
class _Process:
  servers: dict[str, _Server]  # by address
  is_frozen: bool = False


class _World:
  """Processes of ps, and a clock; stands for the modules that look at them."""

  State, Status = health.State, health.Status

  def __init__(self):
    self.now = 0.0
    self.numbers = itertools.count(1)
    self.due = []  # times and functions
    self.processes = {}
    self.homes = {}
    for ps in range(_NUM_PS):
      self.start(ps)

  def start(self, ps, *, elsewhere=False):
    """Starts the process of a ps anew."""
    if elsewhere or ps not in self.homes:
      self.homes[ps] = f'host{ps}:{next(self.numbers)}'
    server = _Server(spec.Task('ps', ps), next(self.numbers))
    self.processes[ps] = _Process({self.homes[ps]: server})

  def kill(self, ps):
    self.processes.pop(ps, None)

  def freeze(self, ps, frozen):
    if ps in self.processes:
      self.processes[ps].is_frozen = frozen

  def incarnations_left(self):
    servers = (each.servers.values() for each in self.processes.values())
    return {server.incarnation for found in servers for server in found}

  def any_frozen(self):
    return any(each.is_frozen for each in self.processes.values())

  def later(self, secs, act):
    self.due.append((self.now + secs, act))

  def server(self, address):
    """The server at an address; None if it does not answer."""
    for process in self.processes.values():
      if address in process.servers and not process.is_frozen:
        return process.servers[address]
    return None

  # The clock.

  def monotonic(self):
    return self.now

  def sleep(self, secs):
    until = self.now + secs
    while ready := [each for each in self.due if each[0] <= until]:
      first = min(ready, key=lambda each: each[0])
      self.due.remove(first)
      self.now = max(self.now, first[0])
      first[1]()
    self.now = until

  def wait(self, secs):
    self.sleep(secs)
    return False

  def is_set(self):
    return False

  # `health`.

  def probe(self, task, address):
    self.sleep(0.01)
    server = self.server(address)
    if server is None or server.task != task:
      return health.Status(task, address, health.State.DEAD)
    return health.Status(task, address, health.State.ALIVE, server.incarnation)

  def probe_all(self, addresses):
    return [self.probe(*each) for each in addresses.items()]

  def is_alive(self, task, address):
    return self.probe(task, address).state is health.State.ALIVE

  def incarnations(self, addresses):
    return {
      found.task: found.incarnation for found in self.probe_all(addresses)
    }

  # `hosted_ps`.

  def ask(self, host, address, task):
    if not self.is_alive(host, address):
      raise errors.UnreachableError(f'{host}')
    servers = self.processes[host.index].servers

    def serve():
      if task not in {server.task for server in servers.values()}:
        made = _Server(task, next(self.numbers))
        servers[f'host{host.index}:{next(self.numbers)}'] = made

    self.later(0.3, serve)

  # `hosted_ps` and, with a collection, `homes.Homes`.

  def find(self, task, others):
    if not isinstance(task, spec.Task):
      homes = {each: self.homes[each.index] for each in task}
      return {t: at for t, at in homes.items() if self.is_alive(t, at)}
    for host, address in others.items():
      if self.is_alive(host, address):
        for at, server in self.processes[host.index].servers.items():
          if server.task == task:
            return at
    return None

  def keep(self, homes):
    pass


class _Job:
  """The variables of all ps in use, as a snapshot, notes and fence see them.

  Attributes:
    saved: the value in the last snapshot.
    known: the incarnations to which the runtime is connected, by index of ps.
  """

  inventory = SimpleNamespace(on=lambda ps: [], emptied=lambda: False)

  def __init__(self, world, address_book):
    self._world = world
    self._address_book = address_book
    self.saved = 0
    self.known = {}
    self.num_restored = 0

  def update(self, found):
    self.known = ps_repair.of('ps', found)

  def reached(self):
    """The servers in use to which the runtime is connected."""
    at = self._address_book.addresses.values()
    found = [server for a in at if (server := self._world.server(a))]
    return [s for s in found if self.known[s.task.index] == s.incarnation]

  def servers(self):
    """All servers in use.

    Raises:
      tf.errors.UnavailableError: one cannot be reached.
    """
    found = self.reached()
    if len(found) < _NUM_PS:
      raise tf.errors.UnavailableError(None, None, 'A ps is lost.')
    return found

  def save_quiesced(self):
    (self.saved,) = {server.value for server in self.servers()}

  def restore(self, ps, replicas):
    del ps, replicas
    for index in range(_NUM_PS):
      self.servers()[index].value = self.saved
      self._world.sleep(0.05)
    self.num_restored += 1
    return 0.0

  def __getattr__(self, name):
    return lambda *args: None


class _Notes(consistency_note.ConsistencyNotes):
  """Notes on the servers of a job."""

  def __init__(self, job):
    super().__init__('')
    self._job = job

  def _write(self, ps, text):
    self._job.servers()[ps].note = text

  def _read(self, ps):
    return self._job.servers()[ps].note


class Failover(stateful.RuleBasedStateMachine):
  """Ps that are killed, freeze, leave and come back while a chief trains.

  Each step adds one to the variables of all ps. A repair sets all of them back
  to the last snapshot, unless none was lost.
  """

  def __init__(self):
    super().__init__()
    self.world = world = _World()
    self._patches = [
      mock.patch.object(ps_addresses, 'health', world),
      mock.patch.object(ps_addresses, 'hosted_ps', world),
      mock.patch.object(ps_addresses, 'time', world),
      mock.patch.object(deadlines, 'time', world),
      mock.patch.object(repair_engine, 'time', world),
    ]
    for patch in self._patches:
      patch.start()
    cluster = spec.Cluster({'ps': dict(world.homes), 'worker': {}})
    self.book = ps_addresses.PsAddressBook(cluster)
    self.book._posted = world
    self.job = _Job(world, self.book)
    self.job.known = self.book.incarnations()
    copies = copies_lib.Copies(
      config.Recovery(
        _FOLDER.name,
        take_over_secs=_TAKE_OVER_SECS,
        timeout_secs=_TIMEOUT_SECS,
      ),
      address_book=self.book,
      notes=_Notes(self.job),
      shared=self.job,
      fence=self.job,
      device='/CPU:0',
      saves=True,
      is_shared=False,
    )
    self.recovery = coordinator_recovery.CoordinatorRecovery(
      copies, greet=lambda hosted: None, workers={}
    )
    copies.snapshotter = copies.replicas = self.job
    copies.inventory = self.job.inventory
    self.recovery.repair.monitor = self.recovery._handler = self.job
    self.repairs = ps_repair.PsRepairs(
      quiesce_lock.QuiesceLock(),
      self._incarnations,
      condition=threading.Condition(),
      ask=lambda: None,
      update=self.job.update,
      stopping=world,
      replaced=lambda: None,
      cancel=lambda: None,
    )
    self.repairs.repair_with(
      self.recovery.repair, self.job.known, _TIMEOUT_SECS
    )
    for server in self.job.servers():
      server.value = 0
    self.recovery.repair.prepare()
    self.steps = 0  # in the variables

  def teardown(self):
    try:
      self.world.sleep(100.0)  # what is due is done, and all are back
      for _ in range(5):
        self._fail_back()
      assert not self.book.hosted, 'a ps is not used although it is back'
      before = self.steps
      assert self._try_step()
      assert self.steps == before + 1
    finally:
      for patch in self._patches:
        patch.stop()

  def _incarnations(self):
    found = self.book.incarnations()
    return {('ps', ps): number for ps, number in found.items()}

  def _repair(self):
    with self.repairs._condition:
      self.repairs.note_loss()
    until = self.world.now + _TIMEOUT_SECS
    before, nothing_lost = self.steps, self._is_connected()
    nothing_lost &= self._is_quiet()
    num_restored = self.job.num_restored
    assert self.repairs.repair(lambda rest: None)
    assert self.world.now < until, 'a repair has not ended in time'
    self.repairs.is_lost = False
    assert self.repairs._error is None
    if self.job.num_restored > num_restored:
      self.steps = self.job.saved
    assert self.steps == before or not nothing_lost, 'a move sets ps back'

  def _is_quiet(self):
    return not self.world.due and not self.world.any_frozen()

  def _is_connected(self):
    return len(self.job.reached()) == _NUM_PS

  def _try_step(self):
    """Does a step; repairs if a ps cannot be reached, and does none."""
    reached = self.job.reached()
    is_lost = set(self.job.known.values()) - self.world.incarnations_left()
    if len(reached) < _NUM_PS and not is_lost:
      reached = []  # an execution waits for one that is frozen
    for server in reached:
      server.value += 1  # on some of the ps, if the execution then fails
    if len(reached) == _NUM_PS:
      self.steps += 1
      return True
    self._repair()
    return False

  def _fail_back(self):
    self.world.sleep(2.0)
    self.recovery._fail_back()
    if self.recovery.repair._can_fail_back or not self._is_connected():
      self._repair()

  @stateful.rule()
  def step(self):
    if self._try_step():
      values = {server.value for server in self.job.servers()}
      assert values == {self.steps}, 'steps are lost, or are there twice'

  @stateful.rule()
  def save(self):
    if self._is_connected():
      self.job.save_quiesced()
      assert self.job.saved == self.steps

  @stateful.rule()
  def look_for_those_that_are_back(self):
    self._fail_back()

  @stateful.rule(secs=_SECS)
  def time_passes(self, secs):
    self.world.sleep(secs)

  @stateful.rule(ps=_PS, after=_SECS, away=_SECS, elsewhere=st.booleans())
  def is_killed(self, ps, after, away, elsewhere):
    start = functools.partial(self.world.start, ps, elsewhere=elsewhere)

    def kill():
      self.world.kill(ps)
      self.world.later(away, start)

    self.world.later(after, kill)
    self.world.sleep(0.0)

  @stateful.rule(ps=_PS, after=_SECS, secs=_SECS)
  def freezes(self, ps, after, secs):
    def freeze():
      self.world.freeze(ps, True)
      self.world.later(secs, lambda: self.world.freeze(ps, False))

    self.world.later(after, freeze)
    self.world.sleep(0.0)

  @stateful.rule(ps=_PS, away=_SECS, lingers=st.booleans())
  def leaves(self, ps, away, lingers):
    """It is told to end, and does so once another one serves it."""
    own = self.world.homes[ps]
    in_use = self._is_quiet() and own in self.book.addresses.values()
    self.recovery.repair._has_left.clear()
    self.recovery.repair._leaving = {ps}
    self._repair()
    self.recovery.repair._leaving = set()
    if lingers and in_use and self.recovery.repair._has_left.is_set():
      self._fail_back()
      assert own not in self.book.addresses.values(), 'it is used again'
    self.world.kill(ps)
    self.world.later(away, functools.partial(self.world.start, ps))


def test_ps_that_thaw_have_what_is_older_than_the_snapshot():
  """All are taken over while frozen; then those that have are lost."""
  job = Failover()
  job.is_killed(ps=2, after=0.0, away=4.0, elsewhere=False)
  job.step()
  assert set(job.book.hosted) == {spec.Task('ps', 2)}  # by ps:0
  job.step()
  job.time_passes(secs=4.0)
  for ps in (0, 1):
    job.freezes(ps=ps, after=0.0, secs=0.1)
  job.step()  # ps:2 serves all, as they were before that step
  assert set(job.book.hosted) == {spec.Task('ps', 0), spec.Task('ps', 1)}
  job.is_killed(ps=2, after=0.0, away=0.0, elsewhere=True)
  job.step()
  job.step()
  job.teardown()


Failover.TestCase.settings = settings(
  max_examples=150, stateful_step_count=25, deadline=None
)
test_failover = Failover.TestCase
