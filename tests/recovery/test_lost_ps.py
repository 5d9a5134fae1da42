"""Training goes on although tasks are killed, with all variables as one cut."""

import time

import pytest
import tensorflow as tf

from tests.recovery import losses
import tfps
from tfps import errors
from tfps import testing
from tfps._compat import eager_contexts
from tfps.variables import partitioners

pytestmark = pytest.mark.slow


@pytest.fixture
def processes():
  with testing.ProcessCluster(2, 2) as processes:
    yield processes


@pytest.fixture
def make_strategy(processes, tmp_path):
  def make(partitioner=None, **recovery):
    return tfps.ParameterServerStrategy(
      processes.cluster,
      partitioner,
      recovery=tfps.Recovery(tmp_path / 'cuts', **recovery),
    )

  return make


LOSSES = {
  'a ps': (None, [('ps', 1)]),
  'both ps, of shards': (partitioners.FixedShards(2), [('ps', 0), ('ps', 1)]),
  'a ps and a worker': (None, [('ps', 0), ('worker', 1)]),
}


@pytest.mark.parametrize(
  'loss',
  [
    # As a ps is lost, and others after it, again and again.
    pytest.param('a ps', marks=pytest.mark.exhaustive),
    'both ps, of shards',
    'a ps and a worker',
  ],
)
def test_training_goes_on_and_every_step_counts_once(
  processes, make_strategy, loss
):
  partitioner, tasks = LOSSES[loss]
  events = []
  strategy = make_strategy(partitioner, every_secs=0.5, on_event=events.append)
  variables = losses.counters(strategy)
  with tfps.Coordinator(strategy, timeout_secs=120) as coordinator:
    losses.count_to(
      coordinator,
      variables,
      2_000,
      losses.At(300, losses.lose(processes, *tasks)),
      per_execution=5,
    )
    assert losses.values(variables) == {2_000}
    assert coordinator.global_step.numpy() == 2_000
  lost_ps = {f'ps:{index}' for job, index in tasks if job == 'ps'}
  back = [e for e in events if e.kind == 'back' and e.tasks[0] in lost_ps]
  assert {task for event in back for task in event.tasks} == lost_ps
  assert all(event.set_back_secs >= 0 for event in back)
  if ('worker', 1) in tasks:
    about = [e.kind for e in events if 'worker:1' in e.tasks]
    about = [kind for kind in about if kind != 'repeated']
    assert about[0] == 'lost'
    assert set(about) <= {'lost', 'back'}


def test_what_training_returned_with_is_not_lost(processes, make_strategy):
  strategy = make_strategy(every_secs=3600)
  variables = losses.counters(strategy)
  with tfps.Coordinator(strategy, timeout_secs=120) as coordinator:
    losses.count_to(coordinator, variables, 50)
    losses.lose(processes, ('ps', 1))()
    assert losses.values(variables) == {50}


def test_a_loss_when_no_cut_can_be_read_is_an_error(
  processes, make_strategy, tmp_path
):
  strategy = make_strategy(every_secs=3600)
  variables = losses.counters(strategy)
  with tfps.Coordinator(strategy, timeout_secs=60) as coordinator:
    losses.count_to(coordinator, variables, 50)
    for values in (tmp_path / 'cuts').glob('cut-*/values.index'):
      values.unlink()
    losses.lose(processes, ('ps', 1))()
    with pytest.raises(errors.CheckpointError, match=r'none of cut-.*can be'):
      losses.values(variables)


def test_ps_may_be_lost_again_and_again(processes, make_strategy):
  strategy = make_strategy(every_secs=0.3)
  variables = losses.counters(strategy)
  act = [losses.lose(processes, ('ps', i)) for i in range(2)]
  with tfps.Coordinator(strategy, timeout_secs=120) as coordinator:
    losses.count_to(
      coordinator, variables, 3_000, losses.At(100, *act), per_execution=5
    )
    assert losses.values(variables) == {3_000}


def test_a_dataset_that_a_loss_has_ended_begins_again(
  processes, make_strategy, tmp_path
):
  """So may any whose iterator was in use, although it never ends."""
  strategy = make_strategy(every_secs=0.3)
  variables = losses.counters(strategy)
  lost_at = tmp_path / 'lost_at'
  lost_at.write_text('0')

  def is_after_loss(began):
    return began > tf.strings.to_number(
      tf.io.read_file(str(lost_at)), tf.float64
    )

  def ends_with_the_loss(context):
    began = tf.data.Dataset.from_tensors(0).map(lambda _: tf.timestamp())
    return began.flat_map(
      lambda began: losses.ones(context).take_while(
        lambda _: is_after_loss(began)
      )
    )

  def lose_ps():
    processes.kill('ps', 1)
    lost_at.write_text(str(time.time()))
    time.sleep(0.3)
    processes.start('ps', 1)

  with tfps.Coordinator(strategy, timeout_secs=120) as coordinator:
    coordinator.train(
      lambda batch: losses.add_one(variables),
      ends_with_the_loss,
      steps=1_000,
      steps_per_execution=5,
      hooks=[losses.At(100, lose_ps)],
    )
    assert losses.values(variables) == {1_000}


def test_what_is_scheduled_is_done_after_the_loss(processes, make_strategy):
  strategy = make_strategy(every_secs=3600)
  variables = losses.counters(strategy)
  fn = tf.function(lambda: losses.add_one(variables))
  with tfps.Coordinator(strategy, timeout_secs=120) as coordinator:
    for _ in range(200):
      coordinator.schedule(fn)
    coordinator.join()
    assert losses.values(variables) == {200}
    losses.lose(processes, ('ps', 1))()
    for _ in range(100):
      coordinator.schedule(fn)
    coordinator.join()
    # The only cut is that from before the first execution.
    assert losses.values(variables) == {100}


def test_a_worker_that_was_idle_when_it_was_lost_with_a_ps_comes_back(
  processes, make_strategy
):
  """Its loss is not noticed before it is out of the cluster."""
  strategy = make_strategy(every_secs=3600)
  variables = losses.counters(strategy)
  fn = tf.function(lambda: losses.add_one(variables))
  with tfps.Coordinator(strategy, timeout_secs=120) as coordinator:
    coordinator.schedule(fn)
    coordinator.join()
    strategy.guard.snapshotter.save()
    processes.kill('worker', 1)
    losses.lose(processes, ('ps', 1))()
    assert losses.values(variables) == {1}  # a repair was needed for this
    for _ in range(100):
      coordinator.schedule(fn)
    coordinator.join()
    processes.start('worker', 1)
    for _ in range(100):
      coordinator.schedule(fn)
    coordinator.join()
    assert losses.values(variables) == {201}


def test_a_frozen_ps_is_waited_for(processes, make_strategy):
  strategy = make_strategy(every_secs=0.5)
  variables = losses.counters(strategy)

  def freeze_and_replace():
    processes.freeze('ps', 0)
    time.sleep(1)
    processes.restart('ps', 0)

  with tfps.Coordinator(strategy, timeout_secs=120) as coordinator:
    losses.count_to(
      coordinator, variables, 1_500, losses.At(200, freeze_and_replace)
    )
    assert losses.values(variables) == {1_500}


def test_an_execution_that_does_not_end_is_not_waited_for_for_ever(
  processes, make_strategy
):
  strategy = make_strategy(every_secs=3600, timeout_secs=4)
  variables = losses.counters(strategy)

  with tfps.Coordinator(strategy, timeout_secs=60) as coordinator:
    losses.count_to(coordinator, variables, 10)
    left = coordinator.schedule(tf.function(lambda: losses.slow(12)))
    losses.lose(processes, ('ps', 0))()
    with pytest.raises(errors.DeadlineError, match=r'worker:\d is not done'):
      coordinator.surviving(lambda: losses.values(variables))
    assert left.fetch() == 1
    assert coordinator.surviving(lambda: losses.values(variables)) == {10}


def test_a_ps_that_knows_this_process_no_more_is_connected_to_anew(
  processes, make_strategy
):
  """It is alive and has all values; nobody but its own errors tells."""
  strategy = make_strategy(every_secs=3600)
  variables = losses.counters(strategy)
  ps = processes.cluster.tasks('ps')[1]

  with tfps.Coordinator(strategy, timeout_secs=60) as coordinator:
    losses.count_to(coordinator, variables, 50)
    eager_contexts.close(
      processes.cluster.address(ps), eager_contexts.own_id(), timeout_secs=5
    )
    losses.count_to(coordinator, variables, 80)
    assert coordinator._cluster.failure_handler.num_repairs == 1
    # Workers may have been at steps of which the other ps had its part.
    assert int(coordinator.global_step) >= 80
    assert min(losses.values(variables)) >= 80


def test_a_ps_that_was_frozen_for_long_is_taken_up_again(
  processes, make_strategy
):
  """As if it had been cut off: nobody replaces it, and nothing is lost."""
  strategy = make_strategy(every_secs=0.5)
  variables = losses.counters(strategy)
  freeze = testing.Fault('freeze', processes.cluster.tasks('ps')[1], 0, 16)

  def freeze_for_long():
    with testing.Faults(processes, [freeze]) as faults:
      while len(faults.events) < 2:
        time.sleep(0.1)

  with tfps.Coordinator(strategy, timeout_secs=120) as coordinator:
    losses.count_to(
      coordinator, variables, 1_000, losses.At(200, freeze_for_long)
    )
    assert min(losses.values(variables)) >= 1_000


def test_one_worker_of_two_that_were_lost_is_enough(processes, make_strategy):
  strategy = make_strategy()
  variables = losses.counters(strategy)

  def lose_both_and_get_one():
    processes.kill('worker', 0)
    processes.kill('worker', 1)
    time.sleep(0.5)
    processes.start('worker', 1)

  with tfps.Coordinator(strategy, timeout_secs=120) as coordinator:
    losses.count_to(
      coordinator, variables, 600, losses.At(100, lose_both_and_get_one)
    )
    # A worker that dies has done its execution, or has not; it is done again.
    assert coordinator.global_step.numpy() in (600, 601, 602)


def leave_behind(make_strategy):
  """Has variables that are 40 in the last cut and 50 on the ps."""
  strategy = make_strategy(every_secs=3600)
  variables = losses.counters(strategy)
  coordinator = tfps.Coordinator(strategy, timeout_secs=60)
  losses.count_to(coordinator, variables, 40)
  fn = tf.function(lambda: losses.add_one(variables))
  for _ in range(10):
    coordinator.schedule(fn)
  coordinator.join()
  assert losses.values(variables) == {50}
  coordinator._stop()  # as if it had died: nobody is told, no cut is made


def test_a_new_chief_goes_on_with_what_is_on_the_ps(make_strategy):
  leave_behind(make_strategy)
  strategy = make_strategy()
  variables = losses.counters(strategy)
  with tfps.Coordinator(strategy, timeout_secs=60) as coordinator:
    assert losses.values(variables) == {50}
    losses.count_to(coordinator, variables, 60)  # of which 40 were counted
    assert losses.values(variables) == {70}


def test_if_a_ps_is_lost_a_new_chief_begins_with_the_last_cut(
  processes, make_strategy
):
  leave_behind(make_strategy)
  processes.restart('ps', 1)
  strategy = make_strategy()
  variables = losses.counters(strategy)
  with tfps.Coordinator(strategy, timeout_secs=60) as coordinator:
    assert losses.values(variables) == {40}
    losses.count_to(coordinator, variables, 60)
    assert losses.values(variables) == {60}


def test_a_new_chief_may_cut_variables_up_otherwise(make_strategy):
  leave_behind(make_strategy)
  strategy = make_strategy(partitioner=partitioners.FixedShards(2))
  variables = losses.counters(strategy)
  with tfps.Coordinator(strategy, timeout_secs=60) as coordinator:
    assert losses.values(variables) == {40}
    losses.count_to(coordinator, variables, 60)
    assert losses.values(variables) == {60}


def test_without_recovery_a_lost_ps_is_an_error(processes):
  strategy = tfps.ParameterServerStrategy(processes.cluster)
  variables = losses.counters(strategy)
  fn = tf.function(lambda: losses.add_one(variables))
  coordinator = tfps.Coordinator(strategy, timeout_secs=20)
  coordinator.schedule(fn)
  coordinator.join()
  losses.lose(processes, ('ps', 0), ('ps', 1))()
  coordinator.schedule(fn)
  with pytest.raises((tf.errors.OpError, errors.DeadlineError)):
    coordinator.join()
  coordinator._stop()


def test_fit_goes_on(processes, make_strategy):
  strategy = make_strategy(partitioners.FixedShards(2), every_secs=0.5)
  history = losses.fit(strategy, processes, {3: 1, 6: 0})
  assert len(history.history['loss']) == 10
  assert history.history['loss'][-1] < 1e-2
  strategy.close()
