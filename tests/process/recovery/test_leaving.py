"""Tasks that are told to end leave nothing half done."""

import re
import sys

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


def test_a_chief_that_leaves_goes_on_where_it_was(tmp_path):
  program = [
    *(sys.executable, '-m', 'tfps.testing.chaos.campaign_task'),
    *('--mode=fit', '--steps=400', '--every_secs=3600'),
    f'--directory={tmp_path}',
  ]
  with testing.ProcessCluster(
    1, 1, commands={'chief': program}, preload=['tensorflow', 'keras']
  ) as cluster:
    waiting.until(lambda: len(numbers(cluster, 'at')) > 10, timeout_secs=120)
    cluster.terminate('chief', 0)
    assert cluster.wait('chief', 0, timeout_secs=30) == 143
    before = len(numbers(cluster, 'at'))
    cluster.start('chief', 0)
    assert cluster.wait('chief', 0, timeout_secs=120) == 0
    done = numbers(cluster, 'at')
    assert done[before] >= done[before - 1]
    assert numbers(cluster, 'count')[-1] >= 400


def numbers(cluster, what):
  """The steps that the chief has reached, or counted, as it has said them."""
  found = re.findall(rf'^{what} (\d+)', cluster.log('chief', 0), re.MULTILINE)
  return [int(step) for step in found]
