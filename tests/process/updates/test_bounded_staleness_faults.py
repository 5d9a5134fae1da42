"""Workers that must not run ahead, of whom some die, freeze and come back."""

import concurrent.futures
import pathlib
import re
import sys

import pytest

from tests.support import ones as ones_lib
from tests.support import waiting
import tfps
from tfps import testing

_PROGRAM = pathlib.Path(__file__).parents[2] / 'programs' / 'meet.py'
_PER_EXECUTION = 2  # as in all of them


def _clocks(strategy):
  """The steps that each of three workers has done."""
  return strategy.sync_session.state.workers.clocks.numpy()[:3].tolist()


def _wait_until_all_step(strategy):
  before = _clocks(strategy)
  waiting.until(
    lambda: all(
      now > then + _PER_EXECUTION
      for now, then in zip(_clocks(strategy), before, strict=True)
    )
  )


@pytest.mark.exhaustive
def test_the_coordinators_workers_go_on_without_who_is_gone():
  with testing.ProcessCluster(num_workers=3, num_ps=1) as processes:
    strategy = tfps.ParameterServerStrategy(
      processes.cluster,
      updates=tfps.updates.BoundedStaleness(1, timeout_secs=2),
    )
    ones = ones_lib.Ones(strategy)
    with tfps.Coordinator(strategy, timeout_secs=100) as coordinator:
      with concurrent.futures.ThreadPoolExecutor(1) as pool:
        future = pool.submit(ones.train, coordinator)
        ones_lib.wait_for_steps(ones)
        processes.kill('worker', 1)
        ones_lib.wait_for_steps(ones)
        processes.start('worker', 1)
        _wait_until_all_step(strategy)
        processes.freeze('worker', 2)
        ones_lib.wait_for_steps(ones)
        processes.thaw('worker', 2)
        _wait_until_all_step(strategy)
        ones.is_to_end.set()
        with pytest.raises(ones_lib.EnoughError):
          future.result(100)
      coordinator.join()
      step = int(coordinator.global_step.numpy())
    # What the worker that died had done of an execution is done once more, of
    # whose last steps it may have counted some and not made the update.
    for steps in (-float(ones.number.numpy()), int(ones.optimizer.iterations)):
      assert step <= steps <= step + _PER_EXECUTION


@pytest.mark.exhaustive
def test_between_graphs_workers_go_on_without_who_is_gone_or_done():
  command = [sys.executable, str(_PROGRAM), 'BoundedStaleness', '400']
  with testing.ProcessCluster(
    3, 2, commands={'worker': command}, preload=['tensorflow', 'keras']
  ) as cluster:

    def found(name, index):
      log = cluster.log('worker', index)
      return re.findall(rf'^{name} (\S+)', log, re.M)

    waiting.until(lambda: len(found('at', 1)) > 5, timeout_secs=150)
    cluster.kill('worker', 1)
    seen = len(found('at', 0))
    waiting.until(lambda: len(found('at', 0)) > seen + 5)
    cluster.start('worker', 1)
    for index in range(3):
      status = cluster.wait('worker', index, timeout_secs=200)
      assert status == 0, cluster.log('worker', index)[-3000:]
      number, of_fit = map(float, found('number', index))
      # A step was counted or not that the worker had done when it died; who is
      # at the last execution while others end it may do as many more.
      assert 400 <= -number <= 400 + 3 * _PER_EXECUTION
      assert -of_fit == 40 + 36 + 32
