"""Faults of tasks that are none: when they begin, and whether."""

import threading

from tests.support import waiting
from tfps import testing
from tfps.cluster import spec as spec_lib

_PS = spec_lib.Task('ps', 0)


class _Tasks:
  """A cluster whose task is killed once it may be."""

  def __init__(self):
    self.may_be_killed = threading.Event()
    self.calls = []

  def kill(self, job, index):
    self.calls.append('kill')
    self.may_be_killed.wait(30)

  def start(self, job, index):
    self.calls.append('start')


def test_faults_that_wait_for_another_are_cancelled_too():
  tasks = _Tasks()
  faults = testing.Faults(tasks, [testing.Fault('kill', _PS, 0, 0)] * 3)
  with faults:
    waiting.until(lambda: tasks.calls)
    leaving = threading.Timer(0, faults.__exit__, (None,))
    leaving.start()
    waiting.until(faults._stopping.is_set)
    tasks.may_be_killed.set()
    leaving.join()
  assert tasks.calls == ['kill', 'start']
  assert [event.moment for event in faults.events] == ['begin', 'end']
