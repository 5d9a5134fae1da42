"""Faults happen when they should, to whom they should."""

import shutil
import sys

import pytest

from tests.support import waiting
from tfps import testing
from tfps.cluster import spec as spec_lib
from tfps.server import health
from tfps.testing.chaos import disks
from tfps.testing.chaos import network

PS = spec_lib.Task('ps', 0)

# Succeeds if the host answers, be it that nothing listens there.
_KNOCK = """
import socket, sys
host, _, port = sys.argv[1].rpartition(':')
try:
  socket.create_connection((host, int(port)), 0.5)
except ConnectionRefusedError:
  pass
"""


@pytest.fixture(scope='module')
def processes():
  with testing.ProcessCluster(num_workers=1, num_ps=2) as processes:
    yield processes


@pytest.mark.parametrize('kind', ['kill', 'hang'])
def test_a_task_is_replaced(processes, kind):
  before = processes.pid('ps', 0)
  with testing.Faults(
    processes, [testing.Fault(kind, PS, at_secs=0.1, for_secs=0.2)]
  ) as faults:
    waiting.until(lambda: len(faults.events) == 2)
  assert processes.pid('ps', 0) != before
  begin, end = faults.events
  assert (begin.moment, end.moment) == ('begin', 'end')
  assert end.at - begin.at >= 0.2


@pytest.mark.parametrize('kind', ['freeze', 'slow'])
def test_a_task_is_stopped_for_a_while(processes, kind):
  before = processes.pid('ps', 0)
  with testing.Faults(processes, [testing.Fault(kind, PS, 0, 0.5)]) as faults:
    waiting.until(lambda: len(faults.events) == 2)
  assert processes.pid('ps', 0) == before
  address = processes.cluster.address(PS)
  assert health.probe(PS, address).state is health.State.ALIVE


@pytest.mark.skipif(bool(network.problem()), reason=network.problem())
def test_a_task_is_cut_off_for_a_while():
  sleep = [sys.executable, '-c', 'import time; time.sleep(600)']
  jobs = dict.fromkeys(['ps', 'worker', 'chief'], sleep)
  with testing.ProcessCluster(1, 1, commands=jobs, on_hosts=True) as processes:
    knock = [sys.executable, '-c', _KNOCK, processes.cluster.address(PS)]

    def reaches_it():
      return not processes.network.popen(2, knock).wait(30)

    cut = testing.Fault('cut', PS, 0, 3)
    assert reaches_it()
    with testing.Faults(processes, [cut]) as faults:
      waiting.until(lambda: faults.events)
      assert not reaches_it()
      waiting.until(lambda: len(faults.events) == 2)
    assert reaches_it()


@pytest.mark.skipif(bool(disks.problem()), reason=disks.problem())
def test_a_disk_is_full_for_a_while(processes):
  with testing.small_disk(2**20) as folder:
    fill = testing.Fault('fill', PS, 0, 0.5, directory=folder)
    with testing.Faults(processes, [fill]) as faults:
      waiting.until(lambda: shutil.disk_usage(folder).free == 0)
      waiting.until(lambda: len(faults.events) == 2)
    assert shutil.disk_usage(folder).free == 2**20


def test_leaving_lets_no_others_begin(processes):
  late = testing.Fault('kill', PS, at_secs=600, for_secs=1)
  with testing.Faults(processes, [late]) as faults:
    pass
  assert faults.events == []


def test_what_goes_wrong_is_raised(processes):
  nobody = testing.Fault('kill', spec_lib.Task('ps', 7), 0, 0)
  faults = testing.Faults(processes, [nobody])
  with pytest.raises(ValueError, match='ps:7 is no process here'), faults:
    waiting.until(lambda: not any(t.is_alive() for t in faults._threads))


def test_random_faults_are_the_same_for_the_same_seed(processes):
  def make(seed, **kwargs):
    return testing.random_faults(processes, seed=seed, until_secs=600, **kwargs)

  faults = make(1)
  assert faults == make(1)
  assert faults != make(2)
  assert 15 < len(faults) < 60
  assert {f.kind for f in faults} == {'kill', 'hang', 'freeze', 'slow'}
  assert {f.task.job for f in faults} == {'ps', 'worker'}
  assert all(0 < f.at_secs < 600 and 0.1 <= f.for_secs <= 3 for f in faults)
  assert {f.kind for f in make(1, kinds=['kill'])} == {'kill'}
  fills = make(1, kinds=['fill'], directory='cuts')
  assert {(str(f.task), f.directory) for f in fills} == {('chief:0', 'cuts')}


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (('burn', PS, 0, 0), "no fault 'burn'. There are kill, freeze, hang, slow"),
    (('kill', PS, -1, 0), 'at_secs must not be negative'),
    (('kill', PS, 0, -1), 'for_secs must not be negative'),
    (('fill', PS, 0, 1), 'directory is None. Give one'),
    (('kill', PS, 0, 1, None, 'cuts'), "directory is 'cuts'. Give one to"),
  ],
)
def test_wrong_faults_are_refused(arguments, message):
  with pytest.raises(ValueError, match=message):
    testing.Fault(*arguments)
