"""Tasks that are told to end leave nothing half done."""

import re

import pytest

from tests.support import losses
from tests.support import waiting
import tfps
from tfps import testing


def test_tasks_that_leave_lose_nothing_and_repeat_nothing(tmp_path):
  seen = []

  def tell_them(processes):
    for task in (('worker', 1), ('ps', 0)):
      processes.terminate(*task)
      assert processes.wait(*task, timeout_secs=30) == 143
      processes.start(*task)
      waiting.until(
        lambda task=task: (
          'Leaving on SIGTERM with status 143' in processes.log(*task)
        )
      )

  with testing.ProcessCluster(2, 2) as processes:
    strategy = tfps.ParameterServerStrategy(
      processes.cluster, recovery=tfps.Recovery(tmp_path, every_secs=3600)
    )
    variables = losses.counters(strategy)

    def step(batch):
      losses.add_one(variables)

    with tfps.Coordinator(strategy, timeout_secs=120) as coordinator:
      steps = losses.train_while(
        coordinator,
        step,
        lambda: tell_them(processes),
        hook=lambda progress: seen.append(progress.step),
      )
      losses.count_to(coordinator, variables, steps + 100)
      assert losses.values(variables) == {steps + 100}
  # Not even what the last cut had not yet: it was made for this.
  assert seen == sorted(seen)


def campaign(mode, folder):
  """A program that makes no cut unless one is needed."""
  return (*losses.campaign(mode, folder, 400), '--every_secs=3600')


@pytest.mark.exhaustive
def test_a_chief_that_leaves_goes_on_where_it_was(tmp_path):
  with testing.ProcessCluster(
    1,
    1,
    commands={'chief': campaign('fit', tmp_path)},
    preload=['tensorflow', 'keras'],
  ) as cluster:
    waiting.until(lambda: len(reached(cluster, 'chief')) > 10, timeout_secs=120)
    cluster.terminate('chief', 0)
    assert cluster.wait('chief', 0, timeout_secs=30) == 143
    before = len(reached(cluster, 'chief'))
    cluster.start('chief', 0)
    assert cluster.wait('chief', 0, timeout_secs=120) == 0
    done = reached(cluster, 'chief')
    assert done[before] >= done[before - 1]
    assert losses.counted(cluster.log('chief', 0))[-1] >= 400


@pytest.mark.exhaustive
def test_between_graphs_what_a_ps_has_is_saved_before_it_leaves(tmp_path):
  with testing.ProcessCluster(
    1,
    2,
    commands={'worker': campaign('between_graph', tmp_path)},
    preload=['tensorflow', 'keras'],
  ) as cluster:
    waiting.until(
      lambda: len(reached(cluster, 'worker')) > 10, timeout_secs=120
    )
    before = reached(cluster, 'worker')
    cluster.terminate('ps', 1)
    assert cluster.wait('ps', 1, timeout_secs=30) == 143
    cluster.start('ps', 1)
    for job, index in (('worker', 0), ('ps', 0), ('ps', 1)):
      assert cluster.wait(job, index, timeout_secs=120) == 0
    # All goes back to the cut that was made for this, and to no earlier one.
    assert min(reached(cluster, 'worker')[len(before) :]) > before[-1]
    assert 'ps:1 was lost and is back' in cluster.log('worker', 0)
    assert losses.counted(cluster.log('worker', 0)) == [400] * 3


def reached(cluster, job):
  """The steps that a task has reached, one after another."""
  found = re.findall(r'^at (\d+)', cluster.log(job, 0), re.MULTILINE)
  return [int(step) for step in found]
