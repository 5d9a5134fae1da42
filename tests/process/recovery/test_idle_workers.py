"""Workers that make no call while ps are frozen, taken over and thaw."""

import collections
import pathlib
import sys

import pytest

from tfps import testing

_PROGRAM = pathlib.Path(__file__).parents[2] / 'programs' / 'idle.py'


class _Job:
  """A chief and a worker that do what they are told to."""

  def __init__(self, processes, folder):
    self._processes, self._folder = processes, folder
    self._num_orders = collections.Counter()

  def tell(self, worker, order):
    """Has a worker do something; returns the variables' values afterwards."""
    self._num_orders[worker] += 1
    number = self._num_orders[worker]
    path = self._folder / f'worker_{worker}' / str(number)
    path.parent.mkdir(exist_ok=True)
    part = path.with_suffix('.part')
    part.write_text(order)
    part.rename(path)
    beginning = f'did {number} '
    self._processes.wait_for_line('worker', worker, beginning, timeout_secs=100)
    log = self._processes.log('worker', worker)
    return log.rpartition(beginning)[2].partition('\n')[0]

  def lose(self, ps):
    """Freezes a ps until another process has taken over what it had."""
    self.tell(0, 'keep')
    self._processes.freeze('ps', ps)
    found = self.tell(0, 'add')
    self._processes.thaw('ps', ps)
    return found


@pytest.mark.exhaustive
def test_what_they_add_then_is_not_lost(tmp_path):
  command = [sys.executable, str(_PROGRAM), str(tmp_path)]
  with testing.ProcessCluster(
    2, 2, commands={'worker': command}, preload=['tensorflow', 'keras']
  ) as processes:
    job = _Job(processes, tmp_path)
    assert job.tell(0, 'add') == '{1.0}'
    assert job.tell(1, 'add') == '{2.0}'
    assert job.lose(0) == '{3.0}'
    # The worker would use the one that has thawed.
    assert job.tell(1, 'add') == '{4.0}'
    # Both are in one process now, and have no notes but of each other.
    assert job.lose(1) == '{5.0}'
    assert job.tell(1, 'add') == '{6.0}'
    assert job.tell(0, 'add') == '{7.0}'
