"""Failover of a coordinator's ps, under random losses, delays and returns."""

import collections
import functools
import threading
from types import SimpleNamespace

from hypothesis import settings
from hypothesis import stateful
from hypothesis import strategies as st

from tests.support import failover
from tfps._utils import quiesce_lock
from tfps.cluster import spec
from tfps.recovery import coordinator_recovery
from tfps.recovery import ps_repair


class _Job:
  """The variables of all ps in use, as a snapshot, notes and fence see them.

  Args:
    world: has the servers.
    has_replicas: whether each ps has those of the one before, too.

  Attributes:
    counts: the steps that were done, and those that were interrupted.
    saved: the values in the last snapshot, by ps.
    saved_counts: the counts when it was taken.
    addresses: those of the ps in use, by task.
    known: the incarnations to which the runtime is connected, by index of ps.
  """

  inventory = SimpleNamespace(on=lambda ps: [], emptied=lambda: False)

  def __init__(self, world, *, has_replicas):
    self._world = world
    self._has_replicas = has_replicas
    self.counts = collections.Counter()
    self.saved = [0] * failover.NUM_PS
    self.saved_counts = collections.Counter()
    self.addresses = {}
    self.known = {}

  def update(self, found):
    self.known = ps_repair.of('ps', found)

  def reached(self):
    """The servers in use to which the runtime is connected."""
    at = self.addresses.values()
    found = [server for a in at if (server := self._world.server(a))]
    return [s for s in found if self.known[s.task.index] == s.incarnation]

  def servers(self):
    """All servers in use.

    Raises:
      tf.errors.UnavailableError: one cannot be reached.
    """
    found = self.reached()
    if len(found) < failover.NUM_PS:
      raise failover.lost()
    return found

  def step(self):
    """Adds one to the variables, and replicas, of all that can be reached.

    Returns:
      Whether those are all.
    """
    reached = self.reached()
    for server in reached:
      server.value += 1
      server.replica += 1
    is_whole = len(reached) == failover.NUM_PS
    self.counts['done' if is_whole else 'interrupted'] += 1
    return is_whole

  def save_quiesced(self):
    self.saved = [server.value for server in self.servers()]
    self.saved_counts = self.counts.copy()

  def restore(self, ps, replicas):
    del replicas
    has_all = failover.have_all_of(ps, has_replicas=self._has_replicas)
    saved = None if has_all else self.saved
    failover.restore(self._world, lambda i: self.servers()[i], ps, saved)
    if not has_all:
      self.counts = self.saved_counts.copy()
    return 0.0

  def free(self, addresses):
    for address in addresses.values():
      if server := self._world.server(address):
        server.value = server.replica = None

  def __getattr__(self, name):
    return lambda *args: None


class Failover(failover.Faults):
  """Ps that also leave, while a chief with a coordinator trains.

  Each step adds one to the variables of all ps. A repair sets all of them back
  to the last snapshot, unless none was lost.
  """

  has_replicas = False

  def __init__(self):
    super().__init__()
    self.job = _Job(self.world, has_replicas=self.has_replicas)
    copies = failover.make_copies(
      self.world, self.job, saves=True, is_shared=False
    )
    self.book = copies.address_book
    self.job.addresses = self.book.addresses
    self.job.known = self.book.incarnations()
    self.recovery = coordinator_recovery.CoordinatorRecovery(
      copies, greet=lambda hosted: None, workers={}
    )
    self.recovery.repair.monitor = self.recovery._handler = self.job
    self.repairs = ps_repair.PsRepairs(
      quiesce_lock.QuiesceLock(),
      self._incarnations,
      condition=threading.Condition(),
      ask=lambda: None,
      update=self.job.update,
      stopping=self.world,
      replaced=lambda: None,
      cancel=lambda: None,
    )
    self.repairs.repair_with(
      self.recovery.repair, self.job.known, failover.TIMEOUT_SECS
    )
    for server in self.job.servers():
      server.value = server.replica = 0
    self.recovery.repair.prepare()

  def teardown(self):
    try:
      self.world.sleep(100.0)  # what is due is done, and all are back
      for _ in range(5):
        self._fail_back()
      assert not self.book.hosted, 'a ps is not used although it is back'
      before = self.job.counts['done']
      assert self._try_step()
      assert self.job.counts['done'] == before + 1
    finally:
      super().teardown()

  def _incarnations(self):
    found = self.book.incarnations()
    return {('ps', ps): number for ps, number in found.items()}

  def _repair(self):
    with self.repairs._condition:
      self.repairs.note_loss()
    until = self.world.now + failover.TIMEOUT_SECS
    before = self.job.counts['done']
    num_lost = failover.NUM_PS - len(self.job.reached())
    sets_nothing_back = self.is_quiet() and num_lost <= self.has_replicas
    assert self.repairs.repair(lambda rest: None)
    assert self.world.now < until, 'a repair has not ended in time'
    self.repairs.is_lost = False
    assert self.repairs._error is None
    is_as_before = self.job.counts['done'] == before
    assert is_as_before or not sets_nothing_back, 'ps are set back'

  def _try_step(self):
    reached = self.job.reached()
    is_lost = set(self.job.known.values()) - self.world.incarnations_left()
    waits = len(reached) < failover.NUM_PS and not is_lost
    if not waits and self.job.step():
      return True
    self._repair()
    return False

  def _fail_back(self):
    self.world.sleep(2.0)
    self.recovery._fail_back()
    if self.recovery.repair._can_fail_back or not self._is_connected():
      self._repair()

  def _is_connected(self):
    return len(self.job.reached()) == failover.NUM_PS

  @stateful.rule()
  def step(self):
    if self._try_step():
      self.check()

  def check(self):
    """Checks that all whole steps are in the variables, and no other ones."""
    values = {server.value for server in self.job.servers()}
    done, interrupted = (
      self.job.counts[what] for what in ('done', 'interrupted')
    )
    most = done + interrupted * self.has_replicas
    assert values <= {*range(done, most + 1)}, 'steps are lost, or twice'

  @stateful.rule()
  def save(self):
    if self._is_connected():
      self.job.save_quiesced()
      self.check()

  @stateful.rule()
  def look_for_those_that_are_back(self):
    self._fail_back()

  @stateful.rule(ps=failover.PS, away=failover.SECS, lingers=st.booleans())
  def leaves(self, ps, away, lingers):
    """It is told to end, and does so once another one serves it."""
    own = self.world.homes[ps]
    in_use = self.is_quiet() and own in self.book.addresses.values()
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


class FailoverWithReplicas(Failover):
  """The same, where only the loss of two ps at once sets them back.

  Steps that a loss has interrupted are in some of the variables.
  """

  has_replicas = True


for machine in (Failover, FailoverWithReplicas):
  machine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=25, deadline=None
  )
test_failover = Failover.TestCase
test_failover_with_replicas = FailoverWithReplicas.TestCase
