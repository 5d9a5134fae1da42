"""The coordinator on tasks that are processes, to be frozen and killed."""

import contextlib
import threading
import time

import pytest
import tensorflow as tf

from tests.support import waiting
import tfps
from tfps import errors
from tfps import testing
from tfps.training import coordinator as coordinator_lib
from tfps.variables import partitioners


@pytest.fixture(scope='module')
def processes():
  with testing.ProcessCluster(num_workers=4, num_ps=2) as processes:
    yield processes


@pytest.fixture(scope='module')
def strategy(processes):
  # TensorFlow's own: closing a coordinator of ours would end the servers.
  return tf.distribute.ParameterServerStrategy(
    processes.cluster.resolver(), partitioners.FixedShards(2)
  )


@pytest.fixture
def all_run(processes):
  """Tells why, if a task has ended by itself; who lacks it would wait."""
  for task in processes.cluster.tasks():
    if task.job != 'chief':
      with contextlib.suppress(errors.DeadlineError):  # it runs
        status = processes.wait(task.job, task.index, timeout_secs=0)
        log = processes.log(task.job, task.index)
        log, _, _ = log.partition('Extension modules:')  # after a crash
        pytest.fail(f'{task} ended with status {status}: {log[-3000:]}')


@pytest.fixture
def coordinator(strategy, all_run):
  with coordinator_lib.Coordinator(strategy, timeout_secs=60) as coordinator:
    yield coordinator


@pytest.fixture
def variables(strategy):
  with strategy.scope():
    return [
      tf.Variable(0, dtype=tf.int64),
      tf.Variable(0.0),
      tf.Variable(tf.zeros([5, 2])),
      tf.Variable(tf.zeros([4], tf.int32)),
    ]


def ones(context):
  return tf.data.Dataset.from_tensors(1).repeat()


def add_one(variables):
  for variable in variables:
    variable.assign_add(tf.ones(variable.shape, variable.dtype))


def assert_all_are(variables, number):
  for variable in variables:
    assert set(tf.reshape(variable, [-1]).numpy()) == {number}


def test_scheduled_increments_are_all_there(coordinator, variables):
  fn = tf.function(lambda: add_one(variables))
  for _ in range(300):
    coordinator.schedule(fn)
  coordinator.join()
  assert_all_are(variables, 300)


@pytest.mark.exhaustive
def test_trained_increments_are_all_there(request, coordinator, variables):
  steps = 3_000 if request.config.getoption('--exhaustive') else 600
  coordinator.train(
    lambda batch: add_one(variables), ones, steps=steps, steps_per_execution=20
  )
  assert_all_are(variables, steps)
  assert coordinator.global_step.numpy() == steps


@pytest.fixture
def frozen(processes):
  """Freezes a worker; it is thawed at the end."""

  def freeze():
    processes.freeze('worker', 1)

  yield freeze
  processes.thaw('worker', 1)


NAMES_WORKER_1 = r'worker:1 at \S+ does not answer'


@pytest.mark.exhaustive
def test_a_join_names_the_frozen_worker_and_may_be_taken_up_again(
  coordinator, variables, processes, frozen
):
  fn = tf.function(lambda: add_one(variables))
  coordinator.schedule(fn)
  coordinator.join()
  for _ in range(100):
    coordinator.schedule(fn)
  frozen()
  with pytest.raises(errors.DeadlineError, match=NAMES_WORKER_1):
    coordinator.join(timeout_secs=3)
  processes.thaw('worker', 1)
  coordinator.join()
  assert_all_are(variables, 101)


def test_a_new_function_is_not_traced_while_a_worker_is_frozen(
  coordinator, variables, processes, frozen
):
  coordinator_lib.Coordinator(coordinator.strategy, timeout_secs=3)
  frozen()
  fn = tf.function(lambda: add_one(variables))
  with pytest.raises(errors.DeadlineError, match=NAMES_WORKER_1):
    coordinator.schedule(fn)
  processes.thaw('worker', 1)
  coordinator_lib.Coordinator(coordinator.strategy, timeout_secs=60)
  coordinator.schedule(fn)
  coordinator.join()
  assert_all_are(variables, 1)


def test_who_tells_a_frozen_worker_something_holds_up_no_other(
  coordinator, variables, processes, frozen
):
  fn = tf.function(lambda: add_one(variables))
  coordinator.schedule(fn)
  coordinator.join()
  with tf.device('/job:worker/task:1/device:CPU:0'):
    kept = tf.random.uniform([])
  frozen()
  del kept  # of which the worker is told
  for _ in range(41):
    coordinator.schedule(fn)
  # All but one, which the frozen worker may have.
  waiting.until(lambda: variables[0].numpy() > 40, timeout_secs=20)
  processes.thaw('worker', 1)
  coordinator.join()
  assert_all_are(variables, 42)


@pytest.mark.exhaustive
def test_training_names_the_frozen_worker(
  coordinator, variables, processes, frozen
):
  def freeze(progress):
    if progress.step == 40:
      frozen()

  with pytest.raises(errors.DeadlineError, match=NAMES_WORKER_1):
    coordinator.train(
      lambda batch: add_one(variables),
      ones,
      steps=1_000_000,
      hooks=[freeze],
      timeout_secs=3,
    )
  processes.thaw('worker', 1)
  coordinator.join()


def test_training_goes_on_without_a_killed_worker(
  strategy, variables, processes
):
  """The last test of this strategy: its worker stays dead."""

  def kill(progress):
    if progress.step == 100:
      # By then the worker has done its executions, and nobody has asked.
      time.sleep(0.5)
      processes.kill('worker', 1)

  def step(batch):
    add_one(variables)
    return {'batch': batch}

  seen = []
  others = set(threading.enumerate())
  with coordinator_lib.Coordinator(strategy, timeout_secs=60) as coordinator:
    result = coordinator.train(
      step,
      ones,
      steps=300,
      hooks=[kill, lambda progress: seen.append(progress)],
    )
  assert result.steps == 300
  metrics = [progress.metrics for progress in seen if progress.moment == 'step']
  assert metrics == [{'batch': 1}] * 300
  # The killed worker's execution was done again.
  assert variables[0].numpy() in (300, 301)
  assert not [
    thread.name
    for thread in threading.enumerate()
    if thread.name.startswith('Worker') and thread not in others
  ]


@pytest.mark.exhaustive
def test_four_workers_count_exactly_and_all_servers_end(processes):
  """The last test here: its strategy tells the servers that it is done."""
  processes.heal()
  strategy = tfps.ParameterServerStrategy(processes.cluster)
  with strategy.scope():
    count = tf.Variable(0, dtype=tf.int64, trainable=False)

  @tf.function
  def add():
    for _ in range(50):
      count.assign_add(1)

  with tfps.Coordinator(strategy, timeout_secs=60) as coordinator:
    for _ in range(60):
      coordinator.schedule(add)
    coordinator.join()
    assert int(count) == 3_000
  for job, number in (('worker', 4), ('ps', 2)):
    for index in range(number):
      assert processes.wait(job, index, timeout_secs=60) == 0
