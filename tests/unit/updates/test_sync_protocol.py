"""Synchronized steps, under random losses and delays."""

from hypothesis import settings
from hypothesis import stateful
from hypothesis import strategies as st
import pytest

from tests.support import sync_model as model
from tests.support import sync_ps
from tfps.updates.sync import participation

_WORKERS = st.integers(0, model.NUM_WORKERS - 1)


class Workers(model.Model, stateful.RuleBasedStateMachine):
  """Workers that do steps together, fail, freeze, return and end.

  A dead one's messages may still arrive until it begins again.
  """

  @stateful.initialize(
    spare=st.integers(0, 1),
    num_points=st.integers(1, sync_ps.NUM_POINTS),
    mode=st.sampled_from([model.OWN, model.POOL, model.QUEUE]),
    updates=st.sampled_from([model.UNLIMITED, 3]),
  )
  def begin_all(self, spare, num_points, mode, updates):
    self.prepare(spare, num_points, mode, updates)

  # What happens.

  def schedule(self, num_steps):
    if (
      self.mode == model.OWN
      or self.has_rest
      or len(self.pool) >= model.NUM_WORKERS
    ):
      return
    if self.mode == model.POOL:
      attempt = participation.Attempt(self.session, num_steps)
    else:
      attempt = participation.QueueParticipation(self.session)
      attempt.num_steps = num_steps
    self.session.expect(attempt)
    self.pool.append(attempt)

  @stateful.rule(i=_WORKERS, num_steps=st.integers(1, 2))
  def begin(self, i, num_steps):
    if i in self.runs or i in self.dead | self.frozen:
      return
    attempt = participation.Attempt(self.session, num_steps)
    if self.mode != model.OWN:
      if not self.pool:
        return
      attempt = self.pool.pop(0)
    run = model.Run(i, attempt.num_steps, attempt)
    run.transitions = self._execute(run)
    self.session.enter(attempt, i)
    self._cancel(*(r for r in self.remains if r.worker == i))
    self._give_up(i)  # which a worker's first message does
    self.runs[i] = run

  @stateful.precondition(lambda self: self.runs)
  @stateful.rule(i=_WORKERS, number=st.integers(1, 6))
  def advance(self, i, number):
    for _ in range(number):
      run = self.runs.get(i)
      if (
        run is None or i in self.dead | self.frozen or not self.advance_run(run)
      ):
        return
      if run.next is None:
        del self.runs[i]
        if not run.is_lost:
          self.session.leave(run.attempt)

  @stateful.rule(number=st.integers(1, 12), num_steps=st.integers(1, 2))
  def work(self, number, num_steps):
    """Workers begin what there is to do, and all go on."""
    for i in range(model.NUM_WORKERS):
      self.schedule(num_steps)
      self.begin(i=i, num_steps=num_steps)
      self.advance(i=i, number=number)

  @stateful.precondition(lambda self: self.remains)
  @stateful.rule(number=st.integers(0, 5))
  def arrive_late(self, number):
    """A message of a dead worker arrives, or its ps goes on."""
    if not self.remains:
      return
    run = self.remains[number % len(self.remains)]
    before = run.next
    if self.advance_run(run) and not (
      run.next in (model.LOOK, model.WAIT) or (before == run.next == model.ADD)
    ):
      self._cancel(run)

  @stateful.rule(
    i=_WORKERS,
    what=st.sampled_from(
      ['die', 'restart', 'fail', 'freeze', 'thaw', 'detect', 'finish']
    ),
  )
  def befall(self, i, what):
    """Something happens to a worker."""
    getattr(self, what)(i)

  @stateful.rule(
    what=st.sampled_from(
      ['rest', 'start_again', 'pause', 'go_on', 'go_on', 'restore']
    ),
    stay=st.sets(_WORKERS),
  )
  def decide(self, what, stay):
    """The chief does something."""
    getattr(self, what)(*([stay] if what == 'restore' else []))

  def die(self, i):
    if i in self.dead or len(self.dead | {i}) == model.NUM_WORKERS:
      return
    self.frozen.discard(i)
    self.dead.add(i)
    run = self.runs.get(i)
    if run is not None:
      self._drop(run)
      if self.mode != model.OWN:  # else it would say so itself
        self._fail(run)

  def fail(self, i):
    """An execution fails on a worker that lives, by an error of the network."""
    run = self.runs.get(i)
    if run is not None and i not in self.dead | self.frozen:
      self._drop(run)
      self._fail(run)

  def _drop(self, run):
    """Ends a run, of which messages may still arrive."""
    del self.runs[run.worker]
    run.is_lost = True
    if run.next <= model.WAIT:
      self.remains.append(run)
    else:
      self._cancel(run)

  def restart(self, i):
    if i in self.dead:
      self.dead.discard(i)
      self.restarted.add(i)

  def freeze(self, i):
    if (
      len(self.dead | self.frozen | {i}) < model.NUM_WORKERS
      and i not in self.dead
    ):
      self.frozen.add(i)

  def thaw(self, i):
    self.frozen.discard(i)

  def detect(self, i):
    """The failure detector probes a worker."""
    if self.mode != model.OWN:
      with self.session.executions.awaited():
        self.session.executions.dismiss_idle()
    if i in self.dead | self.frozen:
      self._give_up(i)
      self.session.members.leave_out(i)
    elif i in self.restarted:
      self.restarted.discard(i)
      self._cancel(*(r for r in self.remains if r.worker == i))
      self._give_up(i)
      self.session.members.replace_leader(i)

  def _give_up(self, i):
    """Notes that another worker makes what one leads."""
    for point, row in enumerate(self._points()):
      if row.leader == i + 1:
        self.repeats[point, row.version] += 1
    for run in self.runs.values():
      if run.worker == i:
        run.is_lost |= run.leads is not None
        run.is_left_out = True

  def finish(self, i):
    """A worker without executions is done, or has no batches for now."""
    if i in self.runs or i in self.dead | self.frozen:
      return
    if self.mode == model.OWN:
      self.session.end(i)
    elif self.mode == model.QUEUE:
      self.session.step_out(i)

  def rest(self):
    """The coordinator schedules no more until all executions have ended."""
    if self.mode != model.OWN and not self.has_rest:
      self.has_rest = True
      self.session.executions.rest()

  def start_again(self):
    if self.has_rest and not self.runs and not self.pool:
      self._start(self.session.start_afresh)

  def pause(self):
    """A snapshot polls until no update is under way."""
    self.is_paused = True
    number, _ = self.session._pauses._pause(1)
    self.is_quiet = number == 0

  def go_on(self):
    if self.is_paused:
      _, was_paused = self.session._pauses._pause(0)
      assert was_paused or not self.is_quiet
    self.is_paused = self.is_quiet = False

  def restore(self, stay):
    """Variables are restored; some workers learn of it only later."""
    for i, run in [*self.runs.items()]:
      if self.mode != model.OWN or i not in stay:
        del self.runs[i]
        run.is_lost = True
        self._cancel(run)
        self._fail(run)
    self._cancel(*self.remains)
    self._start(self.session.start)

  def _start(self, start):
    self.num_starts += 1
    before = [row.version for row in self._points()]
    for gradient in self.gradients:
      gradient.is_excused = True
    with self.ps.at(max(before) + 10):
      start()
    rows = self._points()
    assert all(row.version > v for row, v in zip(rows, before, strict=True))
    self.values = {
      (p, i): rows[p].version for p in model.POINTS for i in model.PS
    }
    self.has_rest = False
    self.is_paused = self.is_quiet = False

  def teardown(self):
    """Whatever has happened, the workers that live come to an end."""
    if not hasattr(self, 'ps'):
      return
    self.go_on()
    for _ in range(40):
      for i in range(model.NUM_WORKERS):
        self.thaw(i)
        if self.mode != model.OWN:
          self.begin(i=i, num_steps=1)
        self.advance(i=i, number=40)
        self.detect(i)
      if not self.pool:
        self.rest()
      if self.mode == model.OWN:
        for i in set(range(model.NUM_WORKERS)) - set(self.runs):
          self.finish(i)
      if not self.runs and not self.pool:
        break
    assert not self.runs, self._said()
    assert not self.pool, self._said()
    self._compare()


TestWorkers = pytest.mark.slow(Workers.TestCase)
TestWorkers.settings = settings(
  max_examples=20, deadline=None, derandomize=True
)


def _workers(number, num_steps=1, **options):
  """All workers have begun their steps, and gone on so far."""
  workers = Workers()
  workers.prepare(**options, mode=model.OWN, updates=model.UNLIMITED)
  for i in range(model.NUM_WORKERS):
    workers.begin(i=i, num_steps=num_steps)
  for i in range(model.NUM_WORKERS):
    workers.advance(i=i, number=number)
  return workers


def test_a_lost_worker_does_not_stand_in_for_another_at_a_later_point():
  workers = _workers(12, spare=0, num_points=2)
  workers.die(2)  # while it waits at the second point
  workers.detect(2)
  workers.advance(i=0, number=12)
  workers.teardown()


def test_who_was_left_out_at_a_later_point_goes_on_alone():
  workers = _workers(12, spare=0, num_points=2)
  workers.freeze(2)
  workers.detect(2)
  for i in range(2):
    workers.die(i)
    workers.detect(i)
  workers.thaw(2)
  workers.teardown()


def test_a_gradient_beyond_the_quorum_is_counted_as_late():
  workers = _workers(5, spare=1, num_points=1)
  assert [g.is_late for g in workers.gradients] == [False, False, True]
  workers.teardown()


def test_a_leader_of_before_a_start_changes_nothing():
  workers = _workers(5, spare=0, num_points=1)
  workers.restore({2})
  workers.advance(i=2, number=1)
  workers.teardown()


def test_an_update_is_made_whose_leader_has_failed():
  workers = _workers(6, spare=0, num_points=1)
  workers.fail(2)  # and is not restarted
  workers.teardown()
  assert max(workers.num_applied.values()) == 2  # by some ps


def test_who_begins_while_an_update_is_made_waits_for_it():
  workers = _workers(0, spare=0, num_points=1)
  workers.die(2)
  workers.detect(2)
  workers.advance(i=0, number=12)
  while workers.runs[1].next != model.UPDATE:
    workers.advance(i=1, number=1)
  workers.advance(i=1, number=1)  # one of the ps is updated
  workers.restart(2)
  workers.begin(i=2, num_steps=1)
  workers.advance(i=2, number=12)
  assert workers.runs[2].next == model.WAIT
  workers.teardown()


def test_no_update_is_made_within_a_pause():
  workers = _workers(0, spare=0, num_points=1, num_steps=3)

  def all_advance(number):
    for _ in range(number):
      for i in range(model.NUM_WORKERS):
        workers.advance(i=i, number=1)

  # Two updates show that a step makes no others.
  while workers.updates[0] < 2:
    all_advance(1)
  workers.pause()
  assert workers.is_quiet
  all_advance(20)
  assert workers.updates[0] == 2
  workers.go_on()
  all_advance(20)
  assert workers.updates[0] == 3
  workers.teardown()
