"""Generations of a group, under random losses, delays and returns."""

import dataclasses

from hypothesis import stateful
from hypothesis import strategies as st
import pytest

from tfps.updates.allreduce import generations

Entry, State = generations.Entry, generations.State
LEFT, READY = generations.LEFT, generations.READY
RUNNING, WAITING = generations.RUNNING, generations.WAITING

_NUM_WORKERS = 3
_WORKERS = st.integers(0, _NUM_WORKERS - 1)


def _next(state, entries, lost=()):
  return generations.next_state(state, entries, lost, _NUM_WORKERS)


def _entries(**entries):
  return {int(name[1:]): entry for name, entry in entries.items()}


def test_the_first_generation_is_of_all_workers():
  assert _next(State(), {}) == State()
  two = _entries(w0=Entry(), w2=Entry())
  assert _next(State(), two) == State()
  assert generations.missing_workers(State(), two, (), _NUM_WORKERS) == {1}
  three = two | _entries(w1=Entry(digest=5, algorithm='ring'))
  formed = _next(State(), three)
  assert (formed.generation, formed.members) == (1, (0, 1, 2))
  assert (formed.source, formed.is_first) == (0, True)
  assert not formed.has_begun
  assert (formed.algorithms, formed.different) == (('', 'ring', ''), {1})
  assert State.parse(str(formed)) == formed


def test_it_begins_once_all_are_ready():
  state = State(generation=4, members=(0, 1))
  ready = Entry(phase=READY, generation=4)
  found = _next(state, _entries(w0=ready, w1=Entry(generation=3)))
  assert not found.has_begun
  assert not found.is_broken  # the other one has not read of it yet
  assert _next(state, _entries(w0=ready, w1=ready)).has_begun


@pytest.mark.parametrize(
  ('entry', 'lost', 'is_broken'),
  [
    (Entry(phase=RUNNING, generation=2, place=7), (), False),
    (Entry(phase=RUNNING, generation=2, place=7), (1,), True),
    (Entry(phase=WAITING, generation=2, place=7), (), True),
    (Entry(phase=LEFT, generation=2, place=7, num_left=1), (), True),
    # The other one still needs what this one sends for step 8.
    (Entry(phase=LEFT, generation=2, place=8, num_left=1), (), False),
  ],
)
def test_it_is_broken_when_a_member_is_gone(entry, lost, is_broken):
  state = State(generation=2, members=(0, 1), has_begun=True)
  other = Entry(phase=RUNNING, generation=2, place=7)
  found = _next(state, _entries(w0=other, w1=entry), lost)
  assert found.is_broken == is_broken
  assert found.has_begun != is_broken


def test_it_is_broken_when_a_member_has_restarted():
  formed = _next(
    State(),
    {i: Entry(incarnation=7 + i) for i in range(_NUM_WORKERS)},
  )
  running = {
    i: Entry(phase=RUNNING, generation=1, incarnation=7 + i)
    for i in range(_NUM_WORKERS)
  }
  assert not _next(formed, running).is_broken
  assert _next(formed, running | {1: Entry(incarnation=3)}).is_broken


def test_who_has_restarted_does_not_enter_the_generation_of_its_last_process():
  formed = _next(
    State(), {i: Entry(incarnation=7) for i in range(_NUM_WORKERS)}
  )
  assert formed.may_be_entered(1, Entry(incarnation=7))
  assert not formed.may_be_entered(1, Entry(incarnation=3))
  assert not formed.may_be_entered(1, Entry(incarnation=7, generation=1))
  broken = dataclasses.replace(formed, is_broken=True)
  assert not broken.may_be_entered(1, Entry(incarnation=7))
  assert not formed.may_be_entered(_NUM_WORKERS, Entry())


def test_members_end_it_between_executions_when_another_worker_waits():
  state = State(generation=2, members=(0, 1), has_begun=True)
  running = Entry(phase=RUNNING, generation=2)
  found = _next(state, _entries(w0=running, w1=running, w2=Entry()))
  assert found.is_change_due
  assert not found.is_broken


def test_all_copy_the_variables_that_contain_most_steps():
  state = State(generation=3, members=(0, 1, 2), incarnations=(4, 0, 0))
  waiting = Entry(phase=WAITING, generation=3, is_new=False, place=5)
  ahead = dataclasses.replace(waiting, place=6)
  entries = _entries(w0=Entry(place=9), w1=waiting, w2=ahead)
  formed = _next(state, entries)
  assert (formed.source, formed.place, formed.is_first) == (2, 6, False)
  assert formed.lost == (0,)  # it is back, without what it had


def test_a_worker_that_has_done_more_is_not_waited_for():
  state = State(generation=3, members=(0, 1))
  done = Entry(phase=LEFT, generation=3, is_new=False, num_left=1)
  waiting = Entry(phase=WAITING, generation=3, is_new=False)
  assert _next(state, _entries(w0=done, w1=waiting)).members == (1,)
  again = dataclasses.replace(waiting, num_left=1)
  assert _next(state, _entries(w0=done, w1=again)) == state


def test_a_chief_that_has_restarted_goes_on_counting():
  entries = {
    i: Entry(phase=WAITING, generation=6, is_new=False, place=8)
    for i in range(1, _NUM_WORKERS)
  }
  assert _next(State(), entries).generation == 0  # and waits for itself
  formed = _next(State(), entries | {0: Entry()})
  assert (formed.generation, formed.source) == (7, 1)


class Group(stateful.RuleBasedStateMachine):
  """Workers of a group that fail, freeze, return, do steps and leave.

  A worker does what `Membership` does, one message at a time; the leader sees
  entries only when it looks. A step adds up what all members give, so it is
  done by all members of a generation, or by none.
  """

  def __init__(self):
    super().__init__()
    self.state = State()
    self.entries = {}  # as the leader sees them
    self.workers = {i: Entry(incarnation=i) for i in range(_NUM_WORKERS)}
    self.steps = dict.fromkeys(range(_NUM_WORKERS), 0)  # in the variables
    self.lost = set()
    self.num_restarts = _NUM_WORKERS
    self.applied = {}  # step -> the generation that made it

  def _change(self, i, **changes):
    self.workers[i] = dataclasses.replace(self.workers[i], **changes)
    self.entries[i] = self.workers[i]

  def _members_in(self, *phases):
    return [
      i
      for i in self.state.members
      if i not in self.lost
      and self.workers[i].phase in phases
      and self.workers[i].generation == self.state.generation
    ]

  @stateful.rule()
  def decide(self):
    before = self.state
    self.state = _next(self.state, self.entries, self.lost)
    assert self.state.generation >= before.generation
    if self.state.generation > before.generation:
      assert not self._members_in_old(before), 'two generations at once'

  def _members_in_old(self, before):
    return [
      i
      for i in before.members
      if i not in self.lost
      and self.workers[i].phase in (READY, RUNNING)
      and self.workers[i].generation == before.generation
    ]

  @stateful.rule(i=_WORKERS)
  def enter(self, i):
    if i not in self.lost and self.workers[i].phase == WAITING:
      self._change(i, place=self.steps[i])

  @stateful.rule(i=_WORKERS)
  def get_ready(self, i):
    worker, state = self.workers[i], self.state
    if i in self.lost or worker.phase != WAITING or i not in self.entries:
      return
    if state.may_be_entered(i, worker):
      self._change(i, phase=READY, generation=state.generation)

  @stateful.rule()
  def copy(self):
    """All members copy the source's variables, or none begins."""
    state = self.state
    ready = self._members_in(READY)
    if state.has_begun and set(ready) == set(state.members):
      for i in ready:
        self.steps[i] = self.steps[state.source]
        self._change(i, phase=RUNNING, place=self.steps[i], is_new=False)

  @stateful.rule(behind=st.sets(_WORKERS))
  def step(self, behind):
    """All members do a step; some may learn of a loss before they apply it."""
    running = self._members_in(RUNNING)
    if set(running) != set(self.state.members) or not running:
      return
    assert len({self.steps[i] for i in running}) == 1, 'variables differ'
    number = self.steps[running[0]] + 1
    self.applied[number] = self.state.generation
    ahead = [i for i in running if i not in behind] or running
    for i in ahead:
      self.steps[i] = number
    if len(ahead) < len(running):  # the others' collective failed
      for i in set(running) - set(ahead):
        self._change(i, phase=WAITING, place=self.steps[i])
      for i in ahead:
        self._change(i, place=self.steps[i])
    else:
      for i in running:
        self._change(i, place=number)

  @stateful.rule(i=_WORKERS)
  def follow(self, i):
    """A worker ends a generation that is broken, or has gone on without it."""
    worker = self.workers[i]
    if i in self.lost or worker.phase not in (READY, RUNNING):
      return
    is_over = self.state.generation != worker.generation
    if is_over or self.state.is_broken:
      self._change(i, phase=WAITING, place=self.steps[i])

  @stateful.rule()
  def change(self):
    """Members end a generation between two executions."""
    running = self._members_in(RUNNING)
    if self.state.is_change_due and set(running) == set(self.state.members):
      for i in running:
        self._change(i, phase=WAITING, place=self.steps[i])

  @stateful.rule(i=_WORKERS)
  def lose(self, i):
    if len(self.lost) + 1 < _NUM_WORKERS:
      self.lost.add(i)

  @stateful.rule(i=_WORKERS)
  def restart(self, i):
    if i in self.lost:
      self.lost.discard(i)
      self.num_restarts += 1
      self.steps[i] = 0
      self.workers[i] = Entry(incarnation=self.num_restarts)
      self.entries[i] = self.workers[i]

  @stateful.rule(i=_WORKERS)
  def thaw(self, i):
    self.lost.discard(i)

  @stateful.invariant()
  def one_group_trains(self):
    trains = {
      self.workers[i].generation
      for i in range(_NUM_WORKERS)
      if i not in self.lost and self.workers[i].phase == RUNNING
    }
    current = {g for g in trains if g == self.state.generation}
    assert len(current) <= 1

  @stateful.rule()
  def settle(self):
    """Everyone does at once what is due."""
    for i in range(_NUM_WORKERS):
      self.follow(i)
      self.enter(i)
    self.change()
    self.decide()
    for i in range(_NUM_WORKERS):
      self.get_ready(i)
    self.decide()
    self.copy()

  def teardown(self):
    """Whatever has happened, the workers that live go on together."""
    for _ in range(12):
      self.settle()
    alive = set(range(_NUM_WORKERS)) - self.lost
    has_state = any(not self.workers[i].is_new for i in alive)
    if alive == set(range(_NUM_WORKERS)) or has_state:
      running = set(self._members_in(RUNNING))
      assert running == alive == set(self.state.members), (
        self.state,
        self.workers,
        self.lost,
      )


TestGroup = pytest.mark.slow(Group.TestCase)


def test_who_restarts_before_the_leader_has_looked_joins_the_others():
  group = Group()
  group.settle()
  group.lose(i=0)
  group.restart(i=0)
  group.get_ready(i=0)
  group.teardown()
