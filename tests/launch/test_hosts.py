"""What is left on hosts, and what the launcher says, however a job ends."""

import json
import pathlib
import re
import signal

import psutil
import pytest

from tests.launch.engines import hosts
from tests.support import turns
from tests.support import waiting

_PROGRAM = pathlib.Path(__file__).parents[1] / 'programs' / 'launched.py'
_MARK = 'it\'s\n2 "lines"'
_SECS = 30
_SLEEPERS = ['chief=sleep', 'ps=sleep_with_child', 'worker=sleep']


@pytest.fixture(scope='module')
def engine(tmp_path_factory):
  engine = hosts.Hosts()
  if reason := engine.missing():
    pytest.skip(reason)
  with engine.up(tmp_path_factory.mktemp('hosts')):
    yield engine


@pytest.fixture
def job(engine, tmp_path):
  """A job of sleeping tasks, on two hosts."""
  job = engine.start(
    tmp_path, _SLEEPERS, program=_PROGRAM, options=['--silent_secs=0']
  )
  waiting.until(
    lambda: len(_sleepers(job)) == 7, timeout_secs=_SECS, say=job.output
  )
  yield job
  job.process.kill()
  job.process.wait(_SECS)


def _sleepers(job):
  """The processes that the tasks have said to be theirs."""
  return set(map(int, re.findall(r'(?:sleeping|child) (\d+)', job.output())))


def _assert_all_end(pids, timeout_secs=_SECS):
  waiting.until(
    lambda: not any(map(psutil.pid_exists, pids)), timeout_secs=timeout_secs
  )


@pytest.mark.parametrize(
  'number', turns.rarely([signal.SIGINT, signal.SIGTERM], but=[signal.SIGTERM])
)
def test_a_signal_to_the_launcher_ends_all(job, number):
  pids = _sleepers(job)
  job.process.send_signal(number)
  assert job.wait(_SECS) == 128 + number
  _assert_all_end(pids)


def test_nothing_outlives_a_killed_launcher(job):
  pids = _sleepers(job)
  job.process.kill()
  _assert_all_end(pids)


@pytest.mark.exhaustive
def test_the_first_failure_ends_all(engine, tmp_path):
  words = ['chief=sleep', 'ps=sleep_with_child', 'worker=fail']
  job = engine.start(tmp_path, words, program=_PROGRAM)
  assert job.wait(_SECS) == 7, job.output()
  assert re.search(r'worker:\d failed with status 7', job.output())
  _assert_all_end(_sleepers(job))


@pytest.mark.exhaustive
def test_a_task_that_is_deaf_to_sigterm_is_killed(engine, tmp_path):
  words = ['chief=sleep', 'ps=deaf', 'worker=sleep']
  job = engine.start(
    tmp_path, words, program=_PROGRAM, options=['--grace_secs=1']
  )
  waiting.until(
    lambda: len(_sleepers(job)) == 5, timeout_secs=_SECS, say=job.output
  )
  pids = _sleepers(job)
  job.stop()
  assert job.wait(_SECS) == 143
  _assert_all_end(pids)


@pytest.mark.exhaustive
def test_tasks_end_on_a_host_that_no_longer_hears_the_launcher(engine, job):
  pids = _sleepers(job)
  engine.network.cut(0, 2)
  try:
    _assert_all_end(pids, timeout_secs=90)
    assert job.wait(_SECS) == 255
    assert re.search(r'the connection to \S+ failed or was lost', job.output())
  finally:
    engine.network.mend(0, 2)


@pytest.mark.exhaustive
def test_the_environment_of_a_login_stays_where_it_is(engine, tmp_path):
  env = {'MARK': _MARK, 'TMPDIR': str(tmp_path)}
  job = engine.start(tmp_path, [], program=_PROGRAM, env=env)
  assert job.wait(_SECS) == 0, job.output()
  assert job.output().count(f'"mark": {json.dumps(_MARK)}, "tmp": null') == 5
