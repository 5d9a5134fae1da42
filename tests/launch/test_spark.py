"""Jobs in a real Spark cluster, as drivers start them."""

import json
import os
import pathlib
import re
import signal
import sys

import psutil
import pytest

from tests.launch import engine as engine_lib
from tests.launch.engines import spark as engine_of_spark
from tests.support import processes

pytestmark = pytest.mark.exhaustive

_JOB_SECS = 280
_STEPS = 400


@pytest.fixture
def engine():
  engine = engine_of_spark.Spark()
  if reason := engine.missing():
    pytest.skip(reason)
  return engine


@pytest.fixture
def drive(engine, tmp_path):
  """Runs the driver to its end and returns its output."""

  def drive(deed):
    return engine_lib.drive(
      engine_of_spark.DRIVER, deed, tmp_path, folder=tmp_path
    )

  return drive


def test_the_chiefs_result_is_returned(drive):
  (found,) = re.findall(r'^RESULT (.*)$', drive('result'), re.M)
  assert json.loads(found) == {
    'task': 'chief:0',
    'jobs': {'chief': 1, 'ps': 2, 'worker': 2},
    'mark': 'b',
    'number': 7,
  }


def test_an_exception_is_shown_and_ends_the_others(drive, tmp_path):
  output = drive('raises')
  assert 'ERROR worker:1 1 worker:1 failed with status 1.' in output
  assert "KeyError: 'no such flight'" in output.partition('ERROR')[2]
  logs = list((tmp_path / 'logs').glob('*.log'))
  # Started once each: Spark has not tried the stage again.
  pids = [re.findall(r'TASK \S+ pid (\d+)', log.read_text()) for log in logs]
  assert [len(each) for each in pids] == [1, 1, 1, 1]
  assert not any(psutil.pid_exists(int(pid)) for (pid,) in pids)


def test_slots_that_others_use_are_named(drive):
  assert (
    'ERROR 3 tasks of a barrier stage need as many free slots at once, and '
    'Spark found none for 5 seconds. It has 6 slots'
  ) in drive('busy')


def test_each_row_of_a_dataframe_is_seen_once_an_epoch(drive):
  output = drive('rows')
  assert 'SAME True 6 1000' in output
  (seen,) = re.findall(r'^SEEN (.*)$', output, re.M)
  letters = sum(len(f'f{i}') for i in range(1000))
  assert json.loads(seen) == {
    'least': 2,
    'most': 2,
    'halves': 2 * 0.5 * sum(range(1000)),
    'letters': 2 * letters,
  }


def test_rows_that_cannot_be_written_are_named(drive):
  output = drive('bad_rows')
  assert "ERROR The column 'mapping' has the type map<string,bigint>" in output
  assert "The column 'name' has a null." in output


def test_a_killed_executor_has_the_stage_start_again(engine, data, tmp_path):
  words = [f'--data={data}', f'--directory={tmp_path}/snapshots']
  job = engine.start(
    tmp_path,
    [*words, f'--steps={_STEPS}', '--pause_secs=0.3'],
    num_workers=1,
    num_ps=1,
  )
  job.wait_for('chief:0', r'^AT [1-9]\d\d$', _JOB_SECS)
  executor = _executor(job, 'ps:0')
  first = [
    psutil.Process(job.pids(task)[0])
    for task in ('chief:0', 'ps:0', 'worker:0')
  ]
  os.kill(executor.pid, signal.SIGKILL)
  processes.wait_for_end(first)
  assert job.wait(_JOB_SECS) == 0, job.output()
  for task in ('chief:0', 'ps:0', 'worker:0'):
    assert len(job.pids(task)) == 2, task
  begins = re.findall(r'^BEGIN (\d+)$', job.log('chief:0'), re.M)
  assert 0 < int(begins[1]) < _STEPS
  assert job.number('STEP') == _STEPS
  assert job.number('COUNT') == _STEPS


def test_the_example_trains_on_rows(engine, tmp_path):
  folder = pathlib.Path(__file__).parents[2] / 'launch' / 'spark'
  job = engine_lib.Launched(
    [
      pathlib.Path(sys.executable).with_name('spark-submit'),
      *('--master', 'local-cluster[2,2,1024]', '--driver-memory', '512m'),
      *('--conf', 'spark.executor.memory=512m'),
      *(folder / 'train_on_spark.py', tmp_path),
    ],
    tmp_path,
    tmp_path,
    {'PYSPARK_PYTHON': sys.executable},
  )
  assert job.wait(_JOB_SECS) == 0, job.output()
  (slope,) = re.findall(r'^slope (\S+)$', job.output(), re.M)
  assert 2.9 < float(slope) < 3.1


def _executor(job, task):
  """The process of the executor that a task is in."""
  parents = psutil.Process(job.pids(task)[-1]).parents()
  return next(each for each in parents if each.name() == 'java')
