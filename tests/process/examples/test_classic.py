import pathlib
import re
import sys

import pytest

from tfps import testing

_EXAMPLE = pathlib.Path(__file__).parents[3] / 'examples/classic/train.py'


@pytest.mark.exhaustive
def test_classic_session_code_learns_and_every_task_ends():
  command = [sys.executable, str(_EXAMPLE), '--steps=1000']
  commands = {'ps': command, 'worker': command}
  with testing.ProcessCluster(
    2,
    2,
    commands=commands,
    preload=['tensorflow', 'keras'],
    held_back=['worker:1'],
  ) as cluster:
    # A session that finds no chief looks for it again after 30 seconds.
    cluster.wait_for_line('worker', 0, 'worker:0 trains', timeout_secs=120)
    cluster.start('worker', 1)
    for job in ('worker', 'ps'):
      for task in cluster.cluster.tasks(job):
        status = cluster.wait(task.job, task.index, timeout_secs=120)
        assert status == 0, cluster.log(task.job, task.index)[-3000:]
    for index in range(2):
      step, accuracy = re.search(
        r'step (\d+) held-out accuracy (\S+)', cluster.log('worker', index)
      ).groups()
      assert int(step) >= 990  # read while others add
      assert float(accuracy) > 0.85
