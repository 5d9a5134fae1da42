"""Tasks that fall silent are seen from outside."""

import pytest

import tfps
from tfps.launch import hang_detector
from tfps.server import health

PS = tfps.Task('ps', 0)
WORKER = tfps.Task('worker', 0)


class Tasks:
  """What probes find, second by second.

  Attributes:
    states: of the tasks.
    reported: those that the detector has reported.
  """

  def __init__(self, silent_secs):
    self.states = dict.fromkeys((PS, WORKER), health.State.ALIVE)
    self.reported = []
    self._now = 0.0
    self._detector = hang_detector.HangDetector(
      {PS: 'h0:1', WORKER: 'h1:1'},
      silent_secs=silent_secs,
      report=self.reported.append,
      probe_all=self._probe_all,
      clock=lambda: self._now,
    )

  def pass_secs(self, number):
    for _ in range(number):
      self._now += 1
      self._detector.look()

  def _probe_all(self, addresses):
    return [
      health.Status(task, address, self.states[task])
      for task, address in addresses.items()
    ]


@pytest.fixture
def tasks():
  tasks = Tasks(silent_secs=5)
  tasks.pass_secs(3)
  return tasks


def test_a_task_that_freezes_is_reported_once_for_each_time(tasks):
  tasks.states[PS] = health.State.HUNG
  tasks.pass_secs(4)
  assert tasks.reported == []
  tasks.pass_secs(1)
  assert tasks.reported == [PS]
  tasks.pass_secs(20)
  assert tasks.reported == [PS]
  tasks.states[PS] = health.State.ALIVE
  tasks.pass_secs(1)
  tasks.states[PS] = health.State.HUNG
  tasks.pass_secs(5)
  assert tasks.reported == [PS, PS]


def test_a_task_that_dies_is_not_reported(tasks):
  tasks.states[WORKER] = health.State.DEAD
  tasks.pass_secs(20)
  assert tasks.reported == []


def test_a_task_that_starts_again_is_waited_for(tasks):
  tasks.states[WORKER] = health.State.DEAD
  tasks.pass_secs(1)
  tasks.states[WORKER] = health.State.HUNG  # its port is open already
  tasks.pass_secs(20)
  assert tasks.reported == []


def test_a_task_that_pauses_is_not_reported(tasks):
  for _ in range(3):
    tasks.states[WORKER] = health.State.HUNG
    tasks.pass_secs(4)
    tasks.states[WORKER] = health.State.ALIVE
    tasks.pass_secs(1)
  assert tasks.reported == []


def test_nobody_needs_to_be_watched():
  with hang_detector.HangDetector({}, silent_secs=1, report=print):
    pass
