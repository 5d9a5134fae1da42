"""Jobs in a real Ray cluster, as drivers start them."""

import contextlib
import json
import os
import pathlib
import re
import signal
import socketserver
import subprocess
import sys
import threading

import pytest

from tests.launch import engine as engine_lib
from tests.launch.engines import ray as engine_of_ray
from tests.support import enclosures
from tests.support import waiting
from tfps.cluster import spec as spec_lib

pytestmark = pytest.mark.exhaustive

_DRIVER = pathlib.Path(__file__).parents[1] / 'programs' / 'on_ray.py'
_JOB_SECS = 240


@pytest.fixture(scope='module')
def engine(tmp_path_factory):
  engine = engine_of_ray.Ray()
  if reason := engine.missing():
    pytest.skip(reason)
  for package in ('aiohttp_cors', 'tensorboardX'):  # of ray[default,tune]
    pytest.importorskip(package, reason="pip install 'tfps[engines]'")
  with engine.up(tmp_path_factory.mktemp('ray'), has_dashboard=True):
    yield engine


@pytest.fixture
def drive(engine, tmp_path):
  """Runs the driver to its end and returns its output."""

  def drive(*words):
    return engine_lib.drive(_DRIVER, *words, folder=tmp_path, env=engine.env)

  return drive


def test_the_chiefs_result_is_returned(drive):
  output = drive('result')
  (found,) = re.findall(r'^RESULT (.*)$', output, re.M)
  assert json.loads(found) == {
    'task': 'chief:0',
    'jobs': {'chief': 1, 'ps': 2, 'worker': 2},
    'mark': 'b',
  }


def test_an_exception_is_shown_and_ends_the_others(drive):
  output = drive('raises')
  assert 'ERROR worker:1 1 worker:1 failed with status 1.' in output
  assert "KeyError: 'no such flight'" in output.partition('ERROR')[2]
  pids = list(map(int, re.findall(r'TASK \S+ pid (\d+)', output)))
  _wait_for_end(pids)


@pytest.mark.parametrize(
  ('deed', 'complaint'),
  [
    ('cannot_be_sent', r'cannot be sent to the tasks: .*lock'),
    ('cannot_be_returned', r'returned a lock, which cannot be sent'),
  ],
)
def test_what_cannot_be_pickled_is_named(drive, deed, complaint):
  assert re.search(f'ERROR (.*\n)*.*{complaint}', drive(deed))


def test_a_trial_has_its_tasks_in_its_own_bundles(drive, tmp_path):
  assert 'SCORES [4, 9]' in drive('trials', tmp_path)


def test_a_trial_reserves_more_where_its_bundles_do_not_fit(drive, tmp_path):
  assert "TASKS ['chief:0']" in drive('many_trials', tmp_path)


def test_a_killed_driver_leaves_nothing(engine, tmp_path):
  job = _endless(engine, tmp_path)
  job.process.kill()
  _wait_for_end(_pids(job))


def test_an_interrupted_driver_leaves_nothing(engine, tmp_path):
  job = _endless(engine, tmp_path)
  job.process.send_signal(signal.SIGINT)
  assert job.wait(60) in (1, 130)
  assert 'KeyboardInterrupt' in job.output()
  _wait_for_end(_pids(job))


def test_a_submitted_job_is_stopped(engine, tmp_path):
  def ray_job(*words):
    done = subprocess.run(
      [sys.executable, '-m', 'ray.scripts.scripts', 'job', *words],
      env={**os.environ, **engine.env, 'RAY_API_SERVER_ADDRESS': engine.url},
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
      timeout=120,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout

  driver = [sys.executable, str(_DRIVER), 'endless', str(tmp_path / 'logs')]
  ray_job('submit', '--no-wait', '--submission-id=endless', '--', *driver)
  job = engine_lib.Launched(['true'], tmp_path, tmp_path / 'logs')
  for task in ('chief:0', 'ps:0', 'worker:0'):
    job.wait_for(task, '^TASK', 120)
  ray_job('stop', 'endless')
  assert 'was stopped' in ray_job('status', 'endless')
  _wait_for_end(_pids(job))


def test_a_killed_actor_is_back_elsewhere(engine, data, tmp_path):
  job = _flights(engine, tmp_path, data)
  job.wait_for('chief:0', r'^AT [1-9]\d$', _JOB_SECS)
  (port,) = re.findall(r'ps:0 is ready at \S+:(\d+)', job.log('ps:0'))
  os.kill(_ancestor(job.pids('ps:0')[-1], 2), signal.SIGKILL)  # its actor
  with _stranger(int(port)):
    assert job.wait(_JOB_SECS) == 0, job.output()
  assert 'ps:0 was lost with its actor' in job.output()
  ports = re.findall(r'ps:0 is ready at \S+:(\d+)', job.log('ps:0'))
  assert len(ports) == 2
  assert ports[0] != ports[1]
  _assert_exact(job)


@enclosures.needed()
def test_an_enclosed_task_whose_port_is_gone_is_named(engine, data, tmp_path):
  tasks = [
    spec_lib.Task.parse(name)
    for name in ('chief:0', 'ps:0', 'ps:1', 'worker:0')
  ]
  certs = enclosures.make(tmp_path / 'certs', *tasks)
  job = _flights(
    engine, tmp_path, data, options=[f'--secure_directory={certs}']
  )
  job.wait_for('chief:0', r'^AT [1-9]\d$', _JOB_SECS)
  (port,) = re.findall(r'ps:0 is ready at \S+:(\d+)', job.log('ps:0'))
  pids = [job.pids(str(task))[-1] for task in tasks]
  # Its actor: the program is in an enclosure, under the task's supervisor.
  os.kill(_ancestor(job.pids('ps:0')[-1], 3), signal.SIGKILL)
  with _stranger(int(port)):
    assert job.wait(_JOB_SECS) == 137, job.output()
  said = job.output()
  assert re.search(rf'ps:0 .*\n.*It was at \S+:{port} and could only', said)
  _wait_for_end(pids)


def test_the_tasks_of_a_lost_node_are_back(engine, data, tmp_path):
  log = tmp_path / 'node'
  with engine.another_node(log) as node:
    job = _flights(engine, tmp_path, data, '--steps=600')
    job.wait_for('chief:0', r'^AT [1-9]\d$', _JOB_SECS)
    node.kill()
    assert job.wait(_JOB_SECS) == 0, job.output()
  assert 'was lost with its actor' in job.output()
  assert job.number('STEP') == 600
  surplus = job.number('COUNT') - 600
  assert 0 <= surplus <= job.number('REPEATED')


def _flights(engine, folder, data, *words, **settings):
  words = [f'--data={data}', f'--directory={folder}/snapshots', *words]
  words = ['--pause_secs=0.3', *words]
  return engine.start(folder, words, num_workers=1, max_restarts=3, **settings)


def _assert_exact(job):
  assert job.number('STEP') == 400
  surplus = job.number('COUNT') - 400
  assert 0 <= surplus <= job.number('REPEATED')


def _endless(engine, folder):
  logs = folder / 'logs'
  job = engine_lib.Launched(
    [sys.executable, _DRIVER, 'endless', logs], folder, logs, engine.env
  )
  for task in ('chief:0', 'ps:0', 'worker:0'):
    job.wait_for(task, '^TASK', 120)
  return job


def _pids(job):
  return [job.pids(task)[-1] for task in ('chief:0', 'ps:0', 'worker:0')]


def _ancestor(pid, generations):
  """The process that is so many generations above another one."""
  for _ in range(generations):
    stat = pathlib.Path(f'/proc/{pid}/stat').read_text()
    pid = int(stat.rpartition(')')[2].split()[1])
  return pid


@contextlib.contextmanager
def _stranger(port):
  """A server that is no task, at a port that is about to be free."""
  found = []

  def is_bound():
    with contextlib.suppress(OSError):
      found.append(_Stranger(('', port), socketserver.BaseRequestHandler))
    return found

  waiting.until(is_bound, timeout_secs=10)
  with found[0] as server:
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield
    server.shutdown()
    thread.join()


class _Stranger(socketserver.TCPServer):
  allow_reuse_address = True


def _wait_for_end(pids):
  assert pids
  waiting.until(
    lambda: not any(os.path.exists(f'/proc/{pid}') for pid in pids),
    timeout_secs=30,
    say=lambda: str(pids),
  )
