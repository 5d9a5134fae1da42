"""What every engine does with the same program: real engines, real jobs.

The table in docs/launch.md has a row for each test, called as its docstring.
"""

import pytest

from tests.launch import engines
from tests.support import enclosures
from tests.support import waiting
from tfps.cluster import spec as spec_lib

_JOB_SECS = 240
_ERROR_SECS = 30
_STEPS = 400
_TASKS = ('chief:0', 'ps:0', 'ps:1', 'worker:0', 'worker:1')


pytestmark = pytest.mark.exhaustive


@pytest.fixture(
  scope='module', params=[pytest.param(e, id=e.name) for e in engines.ALL]
)
def engine(request, tmp_path_factory):
  engine = request.param()
  if reason := engine.missing():
    pytest.skip(reason)
  with engine.up(tmp_path_factory.mktemp(engine.name)):
    yield engine


@pytest.fixture
def start(engine, data, tmp_path):
  """Starts a job in the test's folder, and ends what is left of it."""
  jobs = []

  def start(*words, **options):
    folder = tmp_path / f'job-{len(jobs)}'
    folder.mkdir()
    words = (f'--data={data}', f'--directory={tmp_path}/snapshots', *words)
    jobs.append(engine.start(folder, words, **options))
    return jobs[-1]

  yield start
  for job in jobs:
    job.stop()
  _assert_nothing_is_left(jobs)


def test_a_job_trains_to_its_end(start):
  """a chief, 2 ps and 2 workers train to the same AUC, with logs in place"""
  job = start(f'--steps={_STEPS}', '--shows=MARK', env={'MARK': 'seen'})
  assert job.wait(_JOB_SECS) == 0, job.output()
  assert job.number('STEP') == _STEPS
  assert job.number('COUNT') == _STEPS
  assert job.number('AUC') > 0.72
  for task in _TASKS:
    assert len(job.pids(task)) == 1, task
    assert job.says(task, '^MARK=seen$'), job.log(task)


def test_the_status_of_a_failing_task_is_the_jobs(start, engine):
  """a failing task's status is the job's"""
  job = start('--fails=worker:1')
  assert job.wait(_JOB_SECS) == engine.failed, job.output()
  assert 'worker:1' in job.output()
  _assert_nothing_is_left([job])


def test_killed_tasks_are_back_and_counts_are_exact(start):
  """a killed worker and a killed ps are back, and counts are exact"""
  job = start(f'--steps={_STEPS}', '--pause_secs=0.3', max_restarts=4)
  job.wait_for('chief:0', r'^AT [1-9]\d$', _JOB_SECS)
  job.kill('worker:0')
  waiting.until(
    lambda: len(job.pids('worker:0')) == 2,
    timeout_secs=_JOB_SECS,
    say=job.output,
  )
  job.kill('ps:1')
  assert job.wait(_JOB_SECS) == 0, job.output()
  assert len(job.pids('ps:1')) == 2
  assert job.number('STEP') == _STEPS
  surplus = job.number('COUNT') - _STEPS
  assert 0 <= surplus <= job.number('REPEATED')
  assert job.number('AUC') > 0.72


@enclosures.needed()
def test_enclosed_tasks_train_and_a_killed_ps_is_back(start, tmp_path, engine):
  """with mutual TLS, a killed ps is back, and counts are exact"""
  certs = enclosures.make(tmp_path / 'certs', *map(spec_lib.Task.parse, _TASKS))
  job = start(
    f'--steps={_STEPS}',
    '--pause_secs=0.3',
    '--shows=TFPS_ENCLOSED',
    options=engine.secured_by(certs),
    max_restarts=4,
  )
  job.wait_for('chief:0', r'^AT [1-9]\d$', _JOB_SECS)
  job.kill('ps:1')
  assert job.wait(_JOB_SECS) == 0, job.output()
  assert len(job.pids('ps:1')) == 2
  assert job.number('STEP') == _STEPS
  assert job.number('COUNT') == _STEPS
  for task in _TASKS:
    assert job.says(task, '^TFPS_ENCLOSED=1$'), job.log(task)


def test_a_preempted_job_goes_on_from_its_snapshot(start, engine):
  """a preempted job goes on from its snapshot"""
  first = start(f'--steps={_STEPS}', '--pause_secs=0.3')
  first.wait_for('chief:0', r'^AT [1-9]\d\d$', _JOB_SECS)
  first.stop()
  assert first.wait(_JOB_SECS) == engine.stopped, first.output()
  _assert_nothing_is_left([first])
  again = start(f'--steps={_STEPS}')
  assert again.wait(_JOB_SECS) == 0, again.output()
  assert 0 < again.number('BEGIN') < _STEPS
  assert again.number('COUNT') == _STEPS


def test_mistakes_are_named_soon(start, engine):
  """mistakes are named within 30 seconds"""
  for mistake in engine.mistakes():
    job = start(options=mistake.words, env=mistake.env, **mistake.sizes)
    assert job.wait(_ERROR_SECS) not in (0, None), mistake.what
    assert mistake.is_named(job.output()), f'{mistake}: {job.output()}'


def _assert_nothing_is_left(jobs):
  """Asserts that all processes of jobs end within the time that they have."""
  pids = [pid for job in jobs for task in _TASKS for pid in job.pids(task)]
  waiting.until(
    lambda: not any(map(_is_running, pids)),
    timeout_secs=_ERROR_SECS,
    say=lambda: f'{[pid for pid in pids if _is_running(pid)]} still run',
  )


def _is_running(pid):
  try:
    with open(f'/proc/{pid}/stat') as file:
      return file.read().rpartition(')')[2].split()[0] != 'Z'
  except OSError:
    return False
