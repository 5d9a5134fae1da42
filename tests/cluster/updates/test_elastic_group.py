"""Workers of one process that add up vectors, and come and go."""

import concurrent.futures

import numpy as np
import pytest
import tensorflow as tf

from tests.support import waiting
import tfps
from tfps._compat import handles
from tfps.updates.allreduce import elastic_group as elastic_group_lib
from tfps.updates.allreduce import group_monitor
from tfps.updates.allreduce import local_state as local_state_lib
from tfps.updates.allreduce import membership_table as membership_table_lib
from tfps.updates.allreduce import rendezvous

_MOST = 3
_WAITS = group_monitor.Waits(connect_secs=60, step_secs=60, silence_secs=15)


def _make(ps, name, value):
  del ps
  handles.note_functions()
  return tf.Variable(value, name=name)


class _Worker:
  """One of the crew, with a value of its own that it trains."""

  def __init__(self, cluster, membership, index, waits):
    self.value = tf.Variable(float(index), name='value')
    self.local_state = local_state_lib.LocalState()
    self.local_state.variables.append(self.value)
    tasks = cluster.tasks('worker')
    self.told = []
    self.sync_session = []
    self.elastic_group = elastic_group_lib.ElasticGroup(
      [group_monitor.Peer(task, cluster.address(task)) for task in tasks],
      index,
      membership,
      self.local_state,
      rendezvous.UpdateHooks(
        lambda: None,
        lambda worker: self.sync_session.append(('in', worker)),
        lambda worker: self.sync_session.append(('out', worker)),
      ),
      waits=waits,
      tell=lambda kind, who: self.told.append((kind, who)),
    )

  def step(self, gradient):
    self.elastic_group.join()
    self.add(gradient)
    self.elastic_group.end_steps()
    return float(self.value)

  def add(self, gradient):
    begun = self.elastic_group.begin_mean(np.array([gradient], np.float32))
    self.value.assign_add(self.elastic_group.end_mean(begun)[0])

  def turn(self, *gradients, finished=False):
    """Steps on batches, if there are any; those of all, and the value."""
    agreed = self.elastic_group.agree(len(gradients), finished=finished)
    for gradient in gradients[: agreed.number]:
      self.add(gradient)
    assert self.elastic_group.settle()
    return agreed.number, agreed.finished, float(self.value)

  def steps(self, *gradients):
    return [self.step(gradient) for gradient in gradients]

  def go_on(self, gradient):
    return self.surviving(lambda: self.step(gradient))

  def surviving(self, function):
    """As that of `HybridStrategy`."""
    while True:
      try:
        return function()
      except tf.errors.OpError as error:
        if not self.elastic_group.should_retry(error):
          raise

  def once(self, gradient):
    value = self.go_on(gradient)
    self.elastic_group.leave()
    return value

  def settle_once(self):
    is_kept = self.surviving(self.elastic_group.settle)
    self.elastic_group.leave()
    return is_kept


@pytest.fixture
def membership(tfps_cluster):
  return membership_table_lib.MembershipTable(
    _make, len(tfps_cluster.cluster.tasks('worker'))
  )


@pytest.fixture
def make(tfps_cluster, membership):
  def make(index, waits=_WAITS):
    return _Worker(tfps_cluster.cluster, membership, index, waits)

  return make


@pytest.fixture
def pool():
  with concurrent.futures.ThreadPoolExecutor(_MOST) as pool:
    yield pool


pytestmark = pytest.mark.tfps_cluster(workers=2, ps=1)


def test_all_begin_with_what_the_first_has_and_get_means(make, pool):
  workers = [make(index) for index in range(2)]
  first = pool.submit(workers[0].steps, 1.0, 2.0, 3.0)
  assert workers[1].steps(3.0, 2.0, 1.0) == [2.0, 4.0, 6.0]
  assert first.result(60) == [2.0, 4.0, 6.0]


def test_who_is_done_is_not_waited_for_and_may_come_again(make, pool):
  some, other = make(0), make(1)
  first = pool.submit(some.steps, 1.0)
  assert other.steps(3.0) == [2.0]
  other.elastic_group.leave()
  assert first.result(60) == [2.0]
  assert some.go_on(5.0) == 7.0
  again = pool.submit(other.once, 1.0)
  values = []
  while not again.done():
    values.append(some.go_on(1.0))
  assert again.result() in values  # it has taken over what the other had
  assert some.told == []
  assert other.told == []


def test_all_may_be_done_and_go_on_with_the_same_ring(make, pool):
  workers = [make(index) for index in range(2)]
  rings = set()
  for _ in range(3):
    first = pool.submit(workers[0].steps, 1.0)
    last = workers[1].steps(3.0)
    assert first.result(60) == last
    for worker in workers:
      rings.add(id(worker.elastic_group._round.collective))
      worker.elastic_group.leave()
  assert last == [6.0]
  assert len(rings) == 2  # each worker's own


def test_who_does_not_come_is_named(make):
  with pytest.raises(tfps.DeadlineError, match='still waits for worker:1'):
    make(0, group_monitor.Waits(0.2, 0.2, 0.2)).step(1.0)


def test_what_all_had_is_gone_with_them(make, pool, membership):
  membership.note_begun()  # by workers that are no more
  workers = [make(index) for index in range(2)]
  gone = 'have variables of workers that are gone'
  first = pool.submit(workers[0].elastic_group.join)
  with pytest.raises(ValueError, match=gone):
    workers[1].elastic_group.join()
  with pytest.raises(ValueError, match=gone):
    first.result(60)


def test_who_lives_and_does_something_else_is_named(make, pool):
  waits = group_monitor.Waits(60, 1.5, 15)
  some, other = make(0, waits), make(1, waits)
  first = pool.submit(some.steps, 1.0)
  other.steps(1.0)
  first.result(60)
  with pytest.raises(tf.errors.OpError) as caught:
    some.step(1.0)
  complaint = 'worker:0 and worker:1 have not come to the same step'
  with pytest.raises(tfps.DeadlineError, match=complaint):
    some.elastic_group.should_retry(caught.value)


def test_who_holds_something_else_is_told(make, pool):
  workers = [make(index) for index in range(2)]
  workers[1].local_state.variables.append(tf.Variable(1.0, name='slot'))
  first = pool.submit(workers[0].steps, 1.0)
  with pytest.raises(ValueError, match='other variables than worker:0'):
    workers[1].elastic_group.join()
  assert first.result(60) == [1.0]  # alone


@pytest.mark.tfps_cluster(workers=3, ps=1)
def test_who_has_no_batches_gets_what_the_others_do(make, pool):
  workers = [make(index) for index in range(3)]
  value = 0.0
  for gradients, means in [
    (([3.0], [6.0], [0.0, 9.0]), [3.0]),
    (([], [1.0, 2.0], [3.0, 4.0, 5.0]), [2.0, 3.0]),
    (([4.0], [], []), [4.0]),
    (([1.0], [], [3.0]), [2.0]),
    (([], [], []), []),
    (([], [5.0], [7.0, 5.0]), [6.0]),
    (([6.0], [9.0], [0.0]), [5.0]),
  ]:
    value += sum(means)
    turns = [
      pool.submit(worker.turn, *given)
      for worker, given in zip(workers, gradients, strict=True)
    ]
    found = [turn.result(60) for turn in turns]
    assert found == [(len(means), False, value)] * 3
  last = [pool.submit(w.turn, finished=w is workers[1]) for w in workers]
  assert [turn.result(60) for turn in last] == [(0, True, value)] * 3
  comings = [what for what, who in workers[1].sync_session if who == 1]
  assert comings == ['out', 'in', 'out']


def test_what_others_have_gone_on_without_is_not_kept(make, pool, membership):
  some, other = make(0), make(1)
  agreed = pool.submit(other.elastic_group.agree, 0, finished=False)
  some.elastic_group.agree(1, finished=False)
  agreed.result(60)
  some.add(1.0)
  other.elastic_group._round.collective.abort()
  is_kept = pool.submit(other.surviving, other.elastic_group.settle)
  waiting.until(lambda: membership.read().entered(2) == [1], timeout_secs=60)
  membership.close(2)  # as if the other were silent
  assert is_kept.result(60)
  is_kept = pool.submit(some.settle_once)
  while not is_kept.done():
    assert other.surviving(other.turn) == (0, False, 0.0)
  assert not is_kept.result()
  assert float(some.value) == 0.0


def _lose_the_table(membership, workers):
  """Has the table be lost with its ps, as recovery sees that."""
  for worker in workers:
    worker.elastic_group.interrupt()
  handles.renew([membership._entries, membership._closed])
  with pytest.raises(tf.errors.OpError):
    membership.read()
  for number, worker in enumerate(workers):
    worker.elastic_group.note_restored(is_chief=not number)


def test_all_go_on_when_the_table_is_made_anew(make, pool, membership):
  membership._first = iter(range(10, 100, 10)).__next__
  workers = [make(index) for index in range(2)]
  first = pool.submit(workers[0].steps, 1.0, 2.0)
  assert workers[1].steps(3.0, 4.0) == first.result(60) == [2.0, 5.0]
  workers[1].value.assign(7.0)  # as if it had done one more step
  workers[1].elastic_group._rendezvous.place += 1
  _lose_the_table(membership, workers)
  assert not membership.read().elastic_group
  first = pool.submit(workers[0].steps, 1.0)
  assert workers[1].steps(1.0) == first.result(60) == [8.0]
  assert membership.read().round == 11
  assert workers[0].told == workers[1].told == []


def test_who_was_done_is_not_waited_for_when_the_table_is_made_anew(
  make, pool, membership
):
  some, other = make(0), make(1)
  first = pool.submit(some.steps, 1.0)
  assert other.steps(3.0) == first.result(60) == [2.0]
  other.elastic_group.leave()
  _lose_the_table(membership, [some, other])
  assert some.go_on(5.0) == 7.0


def test_who_undid_a_step_gets_what_the_others_have(make, pool):
  workers = [make(index) for index in range(2)]
  first = pool.submit(workers[0].steps, 1.0)
  assert workers[1].steps(3.0) == first.result(60) == [2.0]
  workers[0].value.assign(0.0)
  for worker in workers:
    worker.elastic_group.interrupt()
  workers[0].elastic_group.note_undone()
  first = pool.submit(workers[0].steps, 1.0)
  assert workers[1].steps(1.0) == first.result(60) == [3.0]
