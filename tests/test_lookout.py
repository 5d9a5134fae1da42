"""Tasks that fall silent are seen from outside."""

import contextlib
import time

import pytest

from tests import waiting
from tfps import testing
from tfps.cluster import spec as spec_lib
from tfps.launch import hang_detector as hang_detector_lib

pytestmark = pytest.mark.slow

PS = spec_lib.Task('ps', 0)
WORKER = spec_lib.Task('worker', 0)


@pytest.fixture(scope='module')
def processes():
  with testing.ProcessCluster(num_workers=1, num_ps=1) as processes:
    yield processes
    processes.heal()


@contextlib.contextmanager
def looking_out(processes, silent_secs=1.5):
  reported = []
  addresses = {task: processes.cluster.address(task) for task in (PS, WORKER)}
  with hang_detector_lib.HangDetector(
    addresses, silent_secs=silent_secs, report=reported.append
  ) as hang_detector:
    waiting.until(lambda: len(hang_detector._answered) == 2)
    yield reported


def test_a_task_that_freezes_is_reported_once_for_each_time(processes):
  with looking_out(processes) as reported:
    processes.freeze('ps', 0)
    waiting.until(lambda: reported == [PS], timeout_secs=15)
    time.sleep(3)
    assert reported == [PS]
    processes.thaw('ps', 0)
    time.sleep(2)
    processes.freeze('ps', 0)
    waiting.until(lambda: reported == [PS, PS], timeout_secs=15)
    processes.thaw('ps', 0)


def test_a_task_that_dies_is_not_reported(processes):
  with looking_out(processes) as reported:
    processes.kill('worker', 0)
    time.sleep(4)
    assert reported == []
    processes.heal()


def test_a_task_that_pauses_is_not_reported(processes):
  with looking_out(processes, silent_secs=6) as reported:
    processes.freeze('worker', 0)
    time.sleep(2)
    processes.thaw('worker', 0)
    time.sleep(2)
    assert reported == []


def test_nobody_needs_to_be_watched():
  with hang_detector_lib.HangDetector({}, silent_secs=1, report=print):
    pass
