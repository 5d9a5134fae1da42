"""Losses of ps at particular moments, with a coordinator and snapshots."""

import subprocess
import sys
import threading
import time

import pytest
import tensorflow as tf

from tests.support import losses
from tests.support import samples
from tests.support import sleeps
from tests.support import waiting
import tfps
from tfps import errors
from tfps import testing
from tfps._compat import eager_contexts
from tfps._utils import threads
from tfps.monitor import families
from tfps.monitor import registry as registry_lib
from tfps.variables import partitioners

pytestmark = pytest.mark.tfps_cluster(workers=2, ps=2, processes=True)


@pytest.fixture
def make_strategy(processes, tmp_path):
  def make(partitioner=None, **recovery):
    return tfps.ParameterServerStrategy(
      processes.cluster,
      partitioner,
      recovery=tfps.Recovery(tmp_path / 'cuts', **recovery),
    )

  return make


@pytest.mark.exhaustive
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
    for values in (tmp_path / 'cuts').glob('snapshot-*/values.index'):
      values.unlink()
    losses.lose(processes, ('ps', 1))()
    with pytest.raises(
      errors.CheckpointError, match=r'none of snapshot-.*can be'
    ):
      losses.values(variables)


@pytest.mark.exhaustive
def test_reads_of_metrics_do_not_hold_up_a_repair(processes, make_strategy):
  strategy = make_strategy(every_secs=3600)
  variables = losses.counters(strategy)
  registry = registry_lib.of_process()
  done = threading.Event()
  failed = []

  def collect():
    while not done.is_set():
      found = samples.values(registry, families.FAILED_READS)
      failed.append(sum(found.values()))

  with tfps.Coordinator(strategy, timeout_secs=120) as coordinator:
    losses.count_to(coordinator, variables, 50)
    reading = threads.begin('collect', collect)
    try:
      processes.kill('ps', 1)
      waiting.until(lambda: failed and failed[-1] > failed[0])
      processes.start('ps', 1)
      losses.count_to(coordinator, variables, 100)
    finally:
      done.set()
    assert losses.values(variables) == {100}
  reading.result()


@pytest.mark.exhaustive
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
      steps=600,
      steps_per_execution=5,
      hooks=[losses.At(100, lose_ps)],
    )
    assert losses.values(variables) == {600}


@pytest.mark.exhaustive
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


@pytest.mark.exhaustive
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


@pytest.mark.exhaustive
def test_an_execution_that_does_not_end_is_not_waited_for_for_ever(
  processes, make_strategy
):
  strategy = make_strategy(every_secs=3600, timeout_secs=1.5)
  variables = losses.counters(strategy)

  with tfps.Coordinator(strategy, timeout_secs=60) as coordinator:
    losses.count_to(coordinator, variables, 10)
    left = coordinator.schedule(tf.function(lambda: sleeps.slow(6)))
    losses.lose(processes, ('ps', 0))()
    with pytest.raises(
      errors.DeadlineError, match=r'worker:\d is still executing'
    ):
      coordinator.surviving(lambda: losses.values(variables))
    assert left.fetch() == 1
    assert coordinator.surviving(lambda: losses.values(variables)) == {10}


@pytest.mark.exhaustive
def test_a_ps_that_knows_this_process_no_more_is_connected_to_anew(
  processes, make_strategy, set_timeouts
):
  """It is alive and has all values; nobody but its own errors tells."""
  set_timeouts(stranger_secs=0.5)
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


@pytest.mark.exhaustive  # it takes until a connection is given up
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


@pytest.mark.exhaustive
def test_a_new_chief_may_cut_variables_up_otherwise(make_strategy):
  leave_behind(make_strategy)
  strategy = make_strategy(partitioner=partitioners.FixedShards(2))
  variables = losses.counters(strategy)
  with tfps.Coordinator(strategy, timeout_secs=60) as coordinator:
    assert losses.values(variables) == {40}
    losses.count_to(coordinator, variables, 60)
    assert losses.values(variables) == {60}


def _names(directory):
  """Of all that is there, but the job's."""
  return sorted({path.name for path in directory.iterdir()} - {'job'})


@pytest.mark.exhaustive
def test_a_ps_that_is_lost_as_it_writes_leaves_the_cut_before(
  processes, make_strategy, tmp_path
):
  strategy = make_strategy(every_secs=3600, written_by='ps')
  variables = losses.counters(strategy)

  with tfps.Coordinator(strategy, timeout_secs=120) as coordinator:
    losses.count_to(coordinator, variables, 50)
    before = _names(tmp_path / 'cuts')
    coordinator.schedule(tf.function(lambda: losses.add_one(variables)))
    coordinator.join()
    assert losses.lose_within(
      processes, ('ps', 1), strategy.guard.snapshotter.save_quiesced
    )
    lost = [v for v in variables if '/task:1/' in v.device]
    assert losses.values(lost) == {50}  # for which this waits
    assert losses.values(variables) == {50}
    assert _names(tmp_path / 'cuts') == before
    losses.count_to(coordinator, variables, 60)
    assert losses.values(variables) == {60}
    assert _names(tmp_path / 'cuts')[-1] > before[-1]


def _can_mount():
  command = ['unshare', '--mount', 'mount', '-t', 'tmpfs', 'none', '/mnt']
  try:
    return subprocess.run(command, capture_output=True).returncode == 0
  except FileNotFoundError:
    return False


@pytest.mark.exhaustive
@pytest.mark.skipif(not _can_mount(), reason='Other disks take root.')
def test_a_disk_that_a_ps_has_for_itself_is_an_error(tmp_path):
  own = 'mount -t tmpfs none "$0" && exec "$@"'
  command = ['unshare', '--mount', 'sh', '-c', own, str(tmp_path)]
  with (
    testing.ProcessCluster(
      1, 1, commands={'ps': [*command, sys.executable, '-m', 'tfps.server']}
    ) as cluster,
    pytest.raises(
      errors.CheckpointError,
      match=rf'ps:0 cannot use {tmp_path}.*disk that the chief and all ps',
    ),
  ):
    tfps.ParameterServerStrategy(
      cluster.cluster, recovery=tfps.Recovery(tmp_path, written_by='ps')
    )
  assert _names(tmp_path) == []
