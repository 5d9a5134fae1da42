"""Workers that are waited for only as long as they have something to do."""

import concurrent.futures
import contextlib
import threading

import numpy as np
import pytest
import tensorflow as tf

from tests.support import waiting
import tfps
from tfps.updates.sync import aggregation
from tfps.updates.sync import participation
from tfps.updates.sync import ps_state
from tfps.updates.sync import worker_table

pytestmark = pytest.mark.tfps_cluster(workers=3, ps=1)


class _Meeting:
  """Executions of one step each, which workers do when they are told to."""

  def __init__(self, cluster):
    self.strategy = tfps.ParameterServerStrategy(
      cluster, updates=tfps.updates.Sync()
    )
    self.sync_session = self.strategy.sync_session
    self.is_updating = threading.Event()
    self.is_computing = threading.Event()
    self.may_update = threading.Event()
    self.may_update.set()
    self.may_compute = threading.Event()
    with self.strategy.scope():
      self.number = tf.Variable(0.0)

    @tf.function(input_signature=[tf.TensorSpec([], tf.int64)])
    def execution(worker):
      return self.sync_session.around(self._step)(worker)

    self._execution = execution.get_concrete_function()

  def execute(self, worker):
    """How many steps count."""
    with tf.device(f'/job:worker/task:{worker}'):
      return int(self._execution(tf.constant(worker, tf.int64)))

  def _step(self, worker, *told):
    sync_step = self.sync_session.sync_step(worker, *told)
    with sync_step.step(0):
      gradient = tf.numpy_function(self._compute, [worker], tf.float32)
      gradient = tf.ensure_shape(gradient, [])
      sync_step.meet([aggregation.Piece(self.number, gradient)], self._update)
    return sync_step.num_counted(1)

  def _compute(self, worker):
    if worker == 2:
      self.is_computing.set()
      assert self.may_compute.wait(60)
    return np.float32(1)

  def _update(self, means):
    mean = tf.numpy_function(self._hold_up, [means[0]], tf.float32)
    self.number.assign_add(tf.ensure_shape(mean, []))

  def _hold_up(self, mean):
    self.is_updating.set()
    assert self.may_update.wait(60)
    return mean

  def point(self):
    return ps_state.Point(*self.sync_session.state.points.numpy()[0].tolist())

  def wait_for_waiting(self, number):
    waiting.until(lambda: self.point().even + self.point().odd == number)


@pytest.fixture
def sync_step(tfps_cluster):
  return _Meeting(tfps_cluster.cluster)


@pytest.fixture
def pool():
  with concurrent.futures.ThreadPoolExecutor(3) as pool:
    yield pool


@pytest.mark.exhaustive
def test_who_has_stepped_out_is_not_waited_for_until_all_have(sync_step, pool):
  for worker in (1, 2):
    sync_step.sync_session.step_out(worker)
  assert sync_step.execute(0) == 1
  assert sync_step.point().short == 1
  sync_step.sync_session.step_out(0)
  first = [pool.submit(sync_step.execute, worker) for worker in (0, 1)]
  sync_step.wait_for_waiting(2)
  sync_step.sync_session.step_out(2)
  assert [each.result(60) for each in first] == [1, 1]
  point = sync_step.point()
  assert (point.updates, point.short, point.late) == (2, 2, 0)


@pytest.mark.exhaustive
def test_who_comes_back_is_part_of_the_next_update(sync_step, pool):
  for worker in (1, 2):
    sync_step.sync_session.step_out(worker)
  sync_step.may_update.clear()
  first = pool.submit(sync_step.execute, 0)
  assert sync_step.is_updating.wait(60)
  second = pool.submit(sync_step.execute, 1)
  sync_step.wait_for_waiting(1)
  sync_step.may_update.set()
  assert first.result(60) == 1
  assert sync_step.execute(0) == second.result(60) == 1
  point = sync_step.point()
  assert (point.updates, point.late) == (2, 0)
  assert sync_step.number.numpy() == 2


@pytest.mark.exhaustive
def test_what_comes_of_a_worker_that_was_left_out_does_not_count(
  sync_step, pool
):
  sync_step.sync_session.step_out(1)
  late = pool.submit(sync_step.execute, 2)
  assert sync_step.is_computing.wait(60)
  sync_step.sync_session.members.leave_out(2)
  assert sync_step.execute(0) == 1
  sync_step.may_compute.set()
  assert late.result(60) == 0
  assert sync_step.point().late == 1
  assert sync_step.number.numpy() == 1


def test_the_gradient_of_a_lost_worker_does_not_stand_in_for_others(
  sync_step, pool
):
  sync_session = sync_step.sync_session
  version = tf.constant(sync_step.point().version, tf.int64)

  @tf.function
  def arrive():  # of which nothing on the ps goes on
    worker = tf.constant(2, tf.int64)
    protocol = sync_session.sync_ops._protocol
    return sync_session.state.locked(
      protocol.look, 0, worker, version, version, tf.constant(True), 1
    )

  leads, *_ = arrive()
  assert not leads
  first = pool.submit(sync_step.execute, 0)
  sync_step.wait_for_waiting(2)
  sync_session.members.leave_out(2)
  assert sync_step.execute(1) == 1
  assert first.result(60) == 1
  point = sync_step.point()
  assert (point.updates, point.late, point.repeated) == (1, 0, 0)


@pytest.mark.exhaustive
def test_gradients_for_which_there_is_no_update_do_not_count(sync_step):
  for worker in (1, 2):
    sync_step.sync_session.step_out(worker)
  sync_step.sync_session.limit(lambda: 1)
  sync_step.sync_session.start()
  assert [sync_step.execute(0) for _ in range(2)] == [1, 0]
  assert sync_step.number.numpy() == 1


@pytest.mark.parametrize(
  'how', ['rest', pytest.param('dismiss_idle', marks=pytest.mark.exhaustive)]
)
def test_workers_with_nothing_to_do_are_dismissed(sync_step, pool, how):
  shift = participation.QueueParticipation(sync_step.sync_session)
  shift.note()
  with contextlib.ExitStack() as stack:
    stack.enter_context(tf.device('/job:worker/task:0'))
    stack.enter_context(shift.begun())
    execution = pool.submit(sync_step.execute, 0)
    sync_step.wait_for_waiting(1)
    getattr(sync_step.sync_session.executions, how)()
    assert execution.result(60) == 1
  members = sync_step.sync_session.state.workers.members.numpy()[:3].tolist()
  # Who rests steps out, too, and all have.
  wanted = {
    'rest': [worker_table.PRESENT] * 3,
    'dismiss_idle': [
      worker_table.PRESENT,
      worker_table.AWAY,
      worker_table.AWAY,
    ],
  }
  assert members == wanted[how]


@pytest.mark.exhaustive
def test_workers_are_dismissed_once_all_others_wait_and_nothing_follows(
  sync_step, pool
):
  executions = {}
  for worker in (0, 2):
    attempt = sync_step.sync_session.attempt(1)
    attempt.note()
    sync_step.sync_session.executions.enter(attempt, worker)
    executions[worker] = pool.submit(sync_step.execute, worker)
  sync_step.wait_for_waiting(1)
  assert sync_step.is_computing.wait(60)

  def dismiss():
    sync_step.sync_session.executions.dismiss_idle()
    return sync_step.sync_session.state.workers.members.numpy()[1]

  with sync_step.sync_session.executions.awaited():
    assert dismiss() == worker_table.PRESENT
  sync_step.may_compute.set()
  sync_step.wait_for_waiting(2)
  assert dismiss() == worker_table.PRESENT
  with sync_step.sync_session.executions.awaited():
    assert dismiss() == worker_table.AWAY
  assert [each.result(60) for each in executions.values()] == [1, 1]
