"""Simulated ps and their clock, for models of failover.

The address book, the repair and the recovery are the real ones. Tasks, their
variables, the network and the clock are not.
"""

from collections.abc import Sequence
import contextlib
import dataclasses
import functools
import itertools
import tempfile
import threading
import types
from unittest import mock

from hypothesis import stateful
from hypothesis import strategies as st
import tensorflow as tf

from tfps import errors
from tfps._utils import deadlines
from tfps.cluster import spec
from tfps.recovery import config
from tfps.recovery import consistency_note
from tfps.recovery import copies as copies_lib
from tfps.recovery import repair_engine
from tfps.recovery import replicas as replicas_lib
from tfps.server import health
from tfps.server import ps_addresses

NUM_PS = 3
CHIEF = spec.Task('chief', 0)
TAKE_OVER_SECS, TIMEOUT_SECS = 1.0, 600.0

PS = st.integers(0, NUM_PS - 1)
SECS = st.sampled_from([0.0, 0.1, 0.5, 1.5, 4.0, 20.0])
# For snapshots, of which there are none: another object stands for them.
_FOLDER = tempfile.TemporaryDirectory()


@dataclasses.dataclass
class Server:
  """A server of a ps, in its own process or in that of another ps.

  Attributes:
    task: the ps.
    incarnation: of the server.
    value: of its variables, the number of steps; None before it has any.
    replica: of the variables of the ps before it, likewise.
    note: the consistency note on it.
  """

  task: spec.Task
  incarnation: int
  value: int | None = None
  replica: int | None = None
  note: str | None = None


@dataclasses.dataclass
class Process:
  servers: dict[str, Server]  # by address
  is_frozen: bool = False


class Fiber:
  """Thread that runs only while another one waits for it to pause or to end.

  Args:
    function: what it runs.

  Attributes:
    has_ended: whether it has.
    error: why its function failed, if it did.
  """

  def __init__(self, function):
    self._function = function
    self._may_run, self._has_paused = (threading.Semaphore(0) for _ in 'ab')
    self.has_ended = False
    self.error = None
    threading.Thread(target=self._run, daemon=True).start()

  def resume(self):
    """Lets it run; called by the other thread."""
    self._may_run.release()
    self._has_paused.acquire()

  def pause(self):
    """Lets the other thread run; called by its own."""
    self._has_paused.release()
    self._may_run.acquire()

  def _run(self):
    self._may_run.acquire()
    try:
      self._function()
    except BaseException as error:
      self.error = error
    finally:
      self.has_ended = True
      self._has_paused.release()


class World:
  """Processes of ps, and a clock; stands for the modules that look at them."""

  State, Status = health.State, health.Status

  def __init__(self):
    self.now = 0.0
    self._own = threading.local()
    self.numbers = itertools.count(1)
    self.due = []  # times and functions
    self.posted = None  # by the chief
    self.processes = {}
    self.homes = {}
    for ps in range(NUM_PS):
      self.start(ps)
    self.listed = dict(self.homes)

  def start(self, ps, *, elsewhere=False):
    """Starts the process of a ps anew."""
    if elsewhere or ps not in self.homes:
      self.homes[ps] = f'host{ps}:{next(self.numbers)}'
    server = Server(spec.Task('ps', ps), next(self.numbers))
    self.processes[ps] = Process({self.homes[ps]: server})

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

  def is_main(self):
    """Whether this is the thread in which time passes, and no fiber."""
    return getattr(self._own, 'fiber', None) is None

  def begin(self, function):
    """Calls a function in a fiber, beside this thread; returns the fiber."""

    def run():
      self._own.fiber = fiber
      function()

    fiber = Fiber(run)
    self.later(0.0, fiber.resume)
    return fiber

  def later(self, secs, act):
    self.due.append((self.now + secs, act))

  def first_servers(self):
    """The servers of all ps before any fault, by index."""
    return [self.server(at) for at in self.listed.values()]

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
    """Passes time, in which other fibers and what is due happen."""
    fiber = getattr(self._own, 'fiber', None)
    if fiber is not None:
      self.later(secs, fiber.resume)
      fiber.pause()
      return
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
        made = Server(task, next(self.numbers))
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


class Notes(consistency_note.ConsistencyNotes):
  """Notes on the servers of a job.

  Args:
    job: has the servers.
    world: of these, and of the chief.
    kinds: arguments of `ConsistencyNotes`.
  """

  def __init__(self, job, world, **kinds):
    super().__init__('', **kinds)
    self._job, self._world = job, world

  def _post(self, text):
    self._world.posted = text

  def _read_posted(self, chief, address):
    self._world.sleep(0.01)
    return self._world.posted

  def _write(self, ps, text):
    self._job.servers()[ps].note = text
    self._job.note_written(ps)

  def _read(self, ps):
    return self._job.servers()[ps].note


class NoteReader:
  """Reads notes on the servers of a world, in place of the real one.

  Args:
    world: has the servers.
  """

  def __init__(self, world):
    self._world = world

  def read(self, address):
    server = self._world.server(address)
    if server is None:
      raise lost()
    if server.note is None:
      return None
    return consistency_note._incarnations(server.note)

  def __enter__(self):
    return self

  def __exit__(self, *exc_info):
    pass


def have_all_of(ps, *, has_replicas):
  """Returns whether replicas on other ps have all variables of these ps."""
  parts = types.SimpleNamespace(_are_wanted=has_replicas, _num_ps=NUM_PS)
  return replicas_lib.Replicas.have_all_of(parts, ps)


def twin_of(ps):
  """Returns the ps that has the replicas of another one."""
  return (ps + 1) % NUM_PS


def restore(world, server, ps, saved):
  """Gives variables and replicas their values, one after another.

  Args:
    world: in which time passes meanwhile.
    server: returns the server of a ps.
    ps: those that were lost; the others' replicas have what they had.
    saved: the values by ps that all are set back to; None for replicas.
  """
  for index in range(NUM_PS):
    twin = twin_of(index)
    if saved is not None:
      server(index).value = saved[index]
    elif index in ps:
      value = server(twin).replica
      world.sleep(0.02)
      server(index).value = value
    world.sleep(0.05)
    if saved is not None or twin in ps:
      value = server(index).value
      world.sleep(0.02)
      server(twin).replica = value


def lost():
  """Returns the error of an operation on a ps that cannot be reached."""
  return tf.errors.UnavailableError(None, None, '/job:ps is lost.')


def make_copies(world, parts, *, saves, is_shared):
  """Returns the copies of a process' variables, and its address book.

  Args:
    world: has the servers.
    parts: stands for snapshots, replicas and the like; its `servers()` are
      those of all ps, by index.
    saves: whether this process saves and restores the variables.
    is_shared: whether other processes use them, too.
  """
  cluster = spec.Cluster({'ps': dict(world.listed), 'worker': {}})
  book = ps_addresses.PsAddressBook(cluster)
  book._posted = world
  kinds = {}
  if is_shared:
    kinds = {'device': '/CPU:0'} if saves else {'chief': (CHIEF, 'chief')}
  copies = copies_lib.Copies(
    config.Recovery(
      _FOLDER.name, take_over_secs=TAKE_OVER_SECS, timeout_secs=TIMEOUT_SECS
    ),
    address_book=book,
    notes=Notes(parts, world, **kinds),
    shared=parts,
    fence=parts,
    device='/CPU:0',
    saves=saves,
    is_shared=is_shared,
  )
  copies.replicas, copies.inventory = parts, parts.inventory
  copies.snapshotter = parts if saves else None
  return copies


class Faults(stateful.RuleBasedStateMachine):
  """Ps that are killed, freeze and come back as time passes.

  Attributes:
    world: their processes.
  """

  # Modules whose `time` is the world's, too.
  timed: Sequence[types.ModuleType] = ()

  def __init__(self):
    super().__init__()
    self.world = world = World()
    self._patches = contextlib.ExitStack()
    self.patch(ps_addresses, 'health', world)
    self.patch(ps_addresses, 'hosted_ps', world)
    for module in (ps_addresses, deadlines, repair_engine, *self.timed):
      self.patch(module, 'time', world)

  def patch(self, owner, name, value):
    """Replaces an attribute while the machine runs."""
    self._patches.enter_context(mock.patch.object(owner, name, value))

  def teardown(self):
    self._patches.close()

  def is_quiet(self):
    return not self.world.due and not self.world.any_frozen()

  @stateful.rule(secs=SECS)
  def time_passes(self, secs):
    self.world.sleep(secs)

  @stateful.rule(ps=PS, after=SECS, away=SECS, elsewhere=st.booleans())
  def is_killed(self, ps, after, away, elsewhere):
    start = functools.partial(self.world.start, ps, elsewhere=elsewhere)

    def kill():
      self.world.kill(ps)
      self.world.later(away, start)

    self.world.later(after, kill)
    self.world.sleep(0.0)

  @stateful.rule(ps=PS, after=SECS, secs=SECS)
  def freezes(self, ps, after, secs):
    def freeze():
      self.world.freeze(ps, True)
      self.world.later(secs, lambda: self.world.freeze(ps, False))

    self.world.later(after, freeze)
    self.world.sleep(0.0)
