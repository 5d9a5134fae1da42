"""Model of workers that do synchronized steps, one transition at a time.

A worker does what `SyncOps` and `BarrierStep` do. The ps decide by the real
protocol; the model asserts the invariants.
"""

import collections
import dataclasses
from typing import Any

import tensorflow as tf

from tests.support import sync_ps
from tfps.updates.sync import protocol_ops
from tfps.updates.sync import worker_table

NUM_WORKERS = 3
PS = range(sync_ps.NUM_PS)
POINTS = range(sync_ps.NUM_POINTS)
UNLIMITED = 1 << 50

# What a run does next. The first three are messages that a worker has sent, the
# next two go on on the ps without it, and the last ones take the worker.
BEGIN, ADD, ARRIVE, LOOK, WAIT, PULL, UPDATE, RELEASE, END = range(9)
# Own executions until a worker is done; those of a coordinator; those on the
# batches of a queue, as long as there are some.
OWN, POOL, QUEUE = range(3)


@dataclasses.dataclass(eq=False)
class Run:
  """An execution on a worker.

  Attributes:
    worker: number of the worker.
    num_steps: number of its steps.
    attempt: what the session knows of it.
    next: what it does next.
    awaits: point and parity of the queue in which it waits, if it does.
    leads: point and version that it makes, if it does.
    is_lost: whether its worker is dead, or what it leads was given up.
    is_left_out: whether others ceased to wait for it.
    starts: for each point, how many starts there were before its ticket.
  """

  worker: int
  num_steps: int
  attempt: Any
  next: int = BEGIN
  awaits: tuple[int, int] | None = None
  leads: tuple[int, int] | None = None
  is_lost: bool = False
  is_left_out: bool = False
  starts: dict[int, int] = dataclasses.field(default_factory=dict)
  transitions: Any = None


@dataclasses.dataclass(eq=False)
class Gradient:
  """A gradient of one worker at one point.

  Attributes:
    run: the execution that computed it.
    point: number of the point.
    version: version of which the worker says that it computed it.
    pulled: versions of the variables on each ps that it was computed from.
    updates: for each ps, the versions made of it.
    is_added: whether no ps has dropped it.
    has_come: whether the worker has reported it.
    is_late: whether it was counted as late.
    is_excused: whether it was for no update: of before a start or after the
      last update.
  """

  run: Run
  point: int
  version: int
  pulled: list[int]
  updates: list[set[int]]
  is_added: bool = True
  has_come: bool = False
  is_late: bool = False
  is_excused: bool = False


class Model:
  """Workers, their gradients and what has become of them."""

  def prepare(self, spare, num_points, mode, updates):
    self.ps = sync_ps.with_spare(spare, NUM_WORKERS)
    self.ps.reset()
    self.session = self.ps.session
    self.spare, self.mode = spare, mode
    # A step on a queue's batches has one point.
    self.num_points = 1 if mode == QUEUE else num_points
    limit = updates if mode == POOL else UNLIMITED
    with self.ps.at(10):
      self.session.start_afresh()
      self.session.limit(lambda: limit)
      self.session.start()
    self.runs = {}  # by worker
    self.dead, self.frozen, self.restarted = set(), set(), set()
    self.waiting = []  # runs in queues, which serve them in this order
    self.remains = []  # runs of dead workers whose messages may arrive
    self.pool = []  # scheduled executions that nobody does
    self.has_rest = self.is_paused = self.is_quiet = False
    self.gradients = []
    self.num_starts = 0
    self.values = {
      (p, i): self._points()[p].version for p in POINTS for i in PS
    }
    self.made = set()
    self.num_applied = collections.Counter()
    self.repeats = collections.Counter()
    self.updates, self.short = collections.Counter(), collections.Counter()

  def _points(self):
    return self.ps.state.read_points()

  def _members(self):
    members = self.ps.state.workers.members.numpy()[:NUM_WORKERS]
    return {i for i in range(NUM_WORKERS) if members[i] > worker_table.ABSENT}

  # What a worker does, as `SyncOps` and `BarrierStep` do it.

  def _execute(self, run):
    waits, versions, quorum = self.ps.begin(run.worker)
    while waits:
      yield from self._wait(run, 0, versions[0])
      waits, versions, quorum = self.ps.begin(run.worker)
    tickets = [protocol_ops.StepTicket(v, quorum) for v in versions]
    run.starts = dict.fromkeys(POINTS, self.num_starts)
    for _ in range(run.num_steps):
      yield PULL
      pulled = dict(self.values)
      step, takes_part = tickets[0].version, True
      for point in range(self.num_points):
        ticket = tickets[point]
        if not takes_part:
          ticket = ticket._replace(version=protocol_ops.NEVER)
        gradient = self._compute(run, point, ticket.version, pulled)
        number = len(self.gradients) - 1
        for i in PS if number % 2 else reversed(PS):
          yield ADD
          gradient.is_added &= self.ps.add(point, i, number, *ticket)
        yield ARRIVE
        tickets[point] = yield from self._meet(run, gradient, *ticket, step)
        run.starts[point] = self.num_starts
        if point == 0:
          takes_part = tickets[0].version == step + 1
    yield END
    self.ps.end(run.worker)

  def _wait(self, run, point, version):
    run.awaits = point, version % 2
    self.waiting.append(run)
    yield WAIT
    self.ps.wait(point, version)
    self.waiting.remove(run)
    run.awaits = None
    yield LOOK

  def _compute(self, run, point, version, pulled):
    own = [pulled[point, i] for i in PS]
    made = Gradient(run, point, version, own, [set() for _ in PS])
    self.gradients.append(made)
    return made

  def _meet(self, run, gradient, version, quorum, step):
    del quorum
    point = gradient.point
    if point:
      self.ps.leave_if_late(point, run.worker, version)
      yield LOOK
    found = self._arrive(run, gradient, version, step)
    while found.waits:
      yield from self._wait(run, point, found.version)
      found = self.ps.look(point, run.worker, found.version, step, True, 0)
    if not found.leads:
      return protocol_ops.StepTicket(found.version, found.quorum)
    team = self._lead(run, point, version, step)
    for i in PS:
      yield UPDATE
      self._update(run, point, i, version, found.enough, team)
    yield RELEASE
    return self._release(run, point, version, found.enough)

  def _arrive(self, run, gradient, version, step):
    before = self._points()[gradient.point]
    gradient.has_come = True
    is_old = self._is_old(run, gradient.point)
    gradient.is_excused = is_old or version == before.version == before.goal
    about = version, step, gradient.is_added
    found = self.ps.look(gradient.point, run.worker, *about, 1)
    late = self._points()[gradient.point].late - before.late
    assert late in (0, 1)
    gradient.is_late = late == 1
    return found

  def _lead(self, run, point, version, step):
    """Notes that a run leads; returns the gradients that have to be used."""
    others = [r for r in self.runs.values() if r.leads and r.leads[0] == point]
    assert all(r.is_lost for r in others), 'two lead'
    run.leads = point, version
    have_come = [
      g
      for g in self.gradients
      if (g.point, g.version, g.has_come) == (point, version, True)
      and g.is_added
    ]
    if not self.spare and not self.has_rest:
      steps = self.ps.state.workers.steps.numpy()
      wanted = {i for i in self._members() if not point or steps[i] == step}
      assert wanted <= {g.run.worker for g in have_come}, 'not waited for'
    return have_come

  def _update(self, run, point, i, version, enough, team):
    try:
      numbers = self.ps.take(point, i, version)
    except tf.errors.InvalidArgumentError:
      assert run.is_lost or self._is_old(run, point)
      raise
    assert not self._is_old(run, point), 'an update of before a start'
    assert run.is_lost or not self.is_quiet, 'an update within a pause'
    used = [self.gradients[number] for number in numbers]
    assert set(team) <= set(used), 'one that had come is not used'
    # Backup workers' tickets may have the smaller quorum of fewer members: what
    # a ps drops for that is counted as late.
    assert self.spare or len(used) >= enough, 'less than was wanted'
    for gradient in used:
      assert (gradient.point, gradient.version) == (point, version)
      # Some ps may be updated before others have closed their sums.
      has_begun = self.repeats[point, version] or (
        gradient not in team
        and (self.spare or self.has_rest or gradient.run.is_left_out)
      )
      values = {version, version + bool(has_begun)}
      assert set(gradient.pulled) <= values, 'of other values'
      gradient.updates[i].add(version)
      assert len(gradient.updates[i]) == 1
    workers = [g.run.worker for g in used if not g.run.is_lost]
    assert len(workers) == len(set(workers)), 'a worker twice'
    self.num_applied[point, i, version] += 1
    repeats = self.repeats[point, version]
    assert self.num_applied[point, i, version] <= 1 + repeats
    self.values[point, i] = max(self.values[point, i], version + 1)

  def _release(self, run, point, version, enough):
    before = self._points()[point]
    wanted = max(len(self._members()), NUM_WORKERS) - self.spare
    found = self.ps.release(point, version, enough)
    run.leads = None
    if before.version != version:
      assert run.is_lost or self._is_old(run, point)
      return found
    assert not self._is_old(run, point)
    assert found.version == version + 1
    assert (point, version) not in self.made
    self.made.add((point, version))
    self.updates[point] += 1
    self.short[point] += enough < wanted
    return found

  def advance_run(self, run):
    """Has a run do what it does next; returns whether it did, or is over."""
    if run.awaits:
      queue = [r for r in self.waiting if r.awaits == run.awaits]
      if queue.index(run) >= self.ps.num_tokens(*run.awaits):
        return False
    try:
      run.next = next(run.transitions)
    except StopIteration:
      run.next = None
    except tf.errors.InvalidArgumentError:
      run.next, run.is_lost = None, True
      self._fail(run)
    return True

  def _cancel(self, *runs):
    self.waiting = [r for r in self.waiting if r not in runs]
    self.remains = [r for r in self.remains if r not in runs]

  def _fail(self, run):
    """What the coordinator does when an execution has failed."""
    self._give_up(run.worker)
    run.is_left_out = True
    self.session.fail(run.attempt, run.worker)
    if self.mode != OWN:
      self.pool.append(run.attempt)

  def _is_old(self, run, point):
    """Returns whether a run's ticket of a point is of before a start."""
    return run.starts[point] != self.num_starts

  def _said(self):
    """Returns what is known, for who reads of a failure."""
    state = self.ps.state
    return (
      self._points()[: self.num_points],
      state.workers.members.numpy()[:NUM_WORKERS],
      state.workers.steps.numpy()[:NUM_WORKERS],
      state.executions.numpy(),
      self.runs,
      self.dead,
    )

  def _compare(self):
    for point, row in enumerate(self._points()[: self.num_points]):
      own = [g for g in self.gradients if g.point == point]
      for gradient in own:
        is_used = all(gradient.updates)
        if gradient.has_come and not gradient.is_excused:
          is_pending = gradient.version == row.version
          assert is_used or gradient.is_late or is_pending, gradient
        assert not (is_used and gradient.is_late), gradient
      assert row.late == sum(g.is_late for g in own)
      assert row.updates == self.updates[point]
      assert row.short == self.short[point]
      repeats = [n for (p, _), n in self.repeats.items() if p == point]
      assert row.repeated == sum(repeats)
