import concurrent.futures
import os
import pathlib
import signal
import subprocess
import sys
import time

import psutil
import pytest

import tfps
from tfps import errors
from tfps import testing
from tfps.cluster import spec as spec_lib
from tfps.server import health

# Tasks that need no TensorFlow, so that starting them costs nothing.
_SLEEP = (sys.executable, '-c', 'import time; print("up"); time.sleep(600)')
_ECHO = (sys.executable, '-c', 'import os; print(os.environ["TF_CONFIG"])')


@pytest.fixture(scope='module')
def serving():
  with testing.ProcessCluster(num_workers=1, num_ps=1) as cluster:
    yield cluster


def _state(cluster: testing.ProcessCluster, job: str) -> health.State:
  task = spec_lib.Task(job, 0)
  return health.probe(task, cluster.cluster.address(task)).state


def test_entering_waits_for_servers(serving):
  serving.heal()
  assert serving.cluster.task == spec_lib.Task('chief', 0)
  assert _state(serving, 'ps') is health.State.ALIVE
  assert _state(serving, 'worker') is health.State.ALIVE


def test_healing_restarts_one_that_ends_meanwhile(serving, monkeypatch):
  serving.heal()
  pid = serving.pid('ps', 0)
  keep, begun = serving._keep_servers, []

  def end_one():
    if not begun:
      serving.terminate('ps', 0)
      serving.wait('ps', 0, timeout_secs=60)
      begun.append('ps:0')
      serving._wait_for_server(spec_lib.Task('ps', 0), time.monotonic())
    keep()

  monkeypatch.setattr(serving, '_keep_servers', end_one)
  serving.heal()
  assert serving.pid('ps', 0) != pid
  assert _state(serving, 'ps') is health.State.ALIVE


def test_a_killed_task_is_dead_until_its_restart(serving):
  serving.heal()
  serving.kill('ps', 0)
  assert _state(serving, 'ps') is health.State.DEAD
  assert serving.wait('ps', 0, timeout_secs=1) == -signal.SIGKILL
  serving.restart('ps', 0)
  assert _state(serving, 'ps') is health.State.ALIVE


def test_a_frozen_task_does_not_answer_until_it_is_thawed(serving):
  serving.heal()
  serving.freeze('worker', 0)
  assert _state(serving, 'worker') is health.State.HUNG
  serving.thaw('worker', 0)
  assert _state(serving, 'worker') is health.State.ALIVE


def test_a_task_does_nothing_more_once_it_is_frozen(serving):
  serving.heal()
  pid = serving.pid('worker', 0)
  for _ in range(20):
    serving.freeze('worker', 0)
    states = [
      path.read_text().rpartition(')')[2].split()[0]
      for path in pathlib.Path(f'/proc/{pid}/task').glob('*/stat')
    ]
    serving.thaw('worker', 0)
    assert set(states) == {'T'}


def test_healing_revives_whatever_happened(serving):
  serving.heal()
  serving.freeze('worker', 0)
  serving.kill('ps', 0)
  serving.heal()
  assert _state(serving, 'ps') is health.State.ALIVE
  assert _state(serving, 'worker') is health.State.ALIVE


def test_healing_has_tasks_stay_that_are_about_to_end(serving):
  serving.heal()
  before = [serving.pid('ps', 0), serving.pid('worker', 0)]
  tfps.ParameterServerStrategy(serving.cluster).close()
  serving.heal()
  time.sleep(4)  # they would have ended
  assert [serving.pid('ps', 0), serving.pid('worker', 0)] == before
  assert _state(serving, 'ps') is health.State.ALIVE
  assert _state(serving, 'worker') is health.State.ALIVE


def test_a_serving_task_that_ends_at_once_is_told_with_its_log():
  cluster = testing.ProcessCluster(1, 1, env={'PYTHONHOME': '/nowhere'})
  with pytest.raises(errors.ServerStartError, match=r':0 .*log ends'):
    cluster.__enter__()


def test_each_task_has_its_own_tf_config_and_log(tmp_path):
  commands = dict.fromkeys(('ps', 'worker', 'chief'), _ECHO)
  with testing.ProcessCluster(
    2, 1, commands=commands, log_dir=tmp_path
  ) as cluster:
    for task in cluster.cluster.tasks():
      assert cluster.wait(task.job, task.index, timeout_secs=30) == 0
      config = cluster.cluster.with_task(task).tf_config()
      assert cluster.log(task.job, task.index).strip() == config
  assert sorted(p.name for p in tmp_path.iterdir()) == [
    'chief-0.log',
    'ps-0.log',
    'worker-0.log',
    'worker-1.log',
  ]


_PROGRAM = """
import os, sys
preloaded = 'tensorflow' in sys.modules
import numpy as np
import tensorflow as tf
# Fails once the runtime has threads, which do not survive a fork.
tf.config.threading.set_inter_op_parallelism_threads(8)
drawn = [tf.random.uniform([]).numpy(), np.random.rand()]
print(preloaded, *drawn, *sys.argv[1:], __name__, sys.path[0], flush=True)
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize(
  'as_module',
  [
    pytest.param(False, id='file', marks=pytest.mark.exhaustive),
    pytest.param(True, id='module'),
  ],
)
def test_programs_are_forked_with_modules_in_place(
  tmp_path, monkeypatch, as_module
):
  (tmp_path / 'program.py').write_text(_PROGRAM)
  monkeypatch.chdir(tmp_path)
  program = ['-m', 'program'] if as_module else [str(tmp_path / 'program.py')]
  commands = {
    job: [sys.executable, *program, status]
    for job, status in (('ps', '0'), ('worker', '3'))
  }
  with testing.ProcessCluster(
    1, 1, commands=commands, preload=['tensorflow', 'keras']
  ) as cluster:
    assert cluster.wait('ps', 0, timeout_secs=60) == 0
    assert cluster.wait('worker', 0, timeout_secs=60) == 3
    ps, worker = (
      cluster.log(job, 0).splitlines()[-1].split() for job in ('ps', 'worker')
    )
  assert ps[3:] == ['0', '__main__', str(tmp_path)]
  assert worker[3:] == ['3', '__main__', str(tmp_path)]
  assert ps[0] == worker[0] == 'True'
  assert not {*ps[1:3]} & {*worker[1:3]}  # each has seeds of its own


@pytest.mark.exhaustive
def test_clusters_that_begin_at_once_are_forked_by_one_process(tmp_path):
  program = tmp_path / 'program.py'
  program.write_text('import time\ntime.sleep(2)\n')
  command = [sys.executable, str(program)]

  def run(_):
    with testing.ProcessCluster(
      1,
      1,
      commands={'ps': command, 'worker': command},
      preload=['colorsys'],  # which nobody else has asked for
    ) as cluster:
      return [cluster.wait(job, 0, timeout_secs=60) for job in ('ps', 'worker')]

  with concurrent.futures.ThreadPoolExecutor(3) as pool:
    assert list(pool.map(run, range(3))) == [[0, 0]] * 3


@pytest.mark.exhaustive
def test_one_process_forks_all_that_need_no_other_imports(
  tmp_path, monkeypatch
):
  command = [sys.executable, str(tmp_path / 'program.py')]
  (tmp_path / 'program.py').write_text('import os; print(os.getppid())')

  def parent(*preload):
    with testing.ProcessCluster(
      1, 1, commands={'ps': command, 'worker': command}, preload=preload
    ) as cluster:
      assert cluster.wait('ps', 0, timeout_secs=60) == 0
      return int(cluster.log('ps', 0))

  monkeypatch.setenv('TF_CPP_MAX_VLOG_LEVEL', '0')  # read by the import
  first = parent('tensorflow', 'keras')
  assert parent('tensorflow') == first
  monkeypatch.setenv('TF_GRPC_DEFAULT_OPTIONS', 'grpc.keepalive_time_ms=9000')
  assert parent('keras') == first
  monkeypatch.setenv('TF_CPP_MAX_VLOG_LEVEL', '1')
  assert parent('keras') != first


def test_a_forked_program_that_cannot_run_says_so_in_its_log(tmp_path):
  commands = {
    'ps': _SLEEP,
    'worker': [sys.executable, str(tmp_path / 'missing.py')],
  }
  with testing.ProcessCluster(
    1, 1, commands=commands, preload=['tensorflow']
  ) as cluster:
    assert cluster.wait('worker', 0, timeout_secs=60) == 1
    assert 'missing.py' in cluster.log('worker', 0)


def test_a_module_to_preload_that_is_not_there_is_named():
  with pytest.raises(ValueError, match="preload: there is no module 'nowhere'"):
    testing.ProcessCluster(1, 1, preload=['nowhere'])


def test_programs_for_workers_leave_the_cluster_without_a_chief():
  cluster = testing.ProcessCluster(1, 1, commands={'worker': _SLEEP})
  assert 'chief' not in cluster.cluster.jobs
  assert cluster.cluster.task is None


def test_a_task_held_back_starts_when_told():
  with testing.ProcessCluster(
    2,
    1,
    commands={'ps': _SLEEP, 'worker': _SLEEP},
    held_back=['worker:1'],
  ) as cluster:
    with pytest.raises(ValueError, match='worker:1 was not started'):
      cluster.pid('worker', 1)
    cluster.start('worker', 1)
    assert psutil.pid_exists(cluster.pid('worker', 1))
    with pytest.raises(ValueError, match='worker:1 runs already'):
      cluster.start('worker', 1)


def test_waiting_has_a_deadline_that_names_the_task():
  commands = {'ps': _SLEEP, 'worker': _SLEEP}
  with testing.ProcessCluster(1, 1, commands=commands) as cluster:
    with pytest.raises(errors.DeadlineError, match='ps:0 still runs after 0'):
      cluster.wait('ps', 0, timeout_secs=0.1)
    cluster.terminate('ps', 0)
    assert cluster.wait('ps', 0, timeout_secs=30) == -signal.SIGTERM


def test_a_task_that_is_no_process_here_is_named():
  with pytest.raises(ValueError, match=r'chief:0 is no process here'):
    testing.ProcessCluster(1, 1).kill('chief', 0)


def test_leaving_ends_all_tasks():
  commands = {'ps': _SLEEP, 'worker': _SLEEP}
  with testing.ProcessCluster(2, 2, commands=commands) as cluster:
    pids = [cluster.pid(t.job, t.index) for t in cluster.cluster.tasks()]
  assert not any(map(psutil.pid_exists, pids))


_PARENT = """
import sys, time
from tfps import testing
sleep = [sys.executable, '-c', 'import time; time.sleep(600)']
commands = {'ps': sleep, 'worker': sleep}
with testing.ProcessCluster(2, 2, commands=commands) as cluster:
  pids = [cluster.pid(t.job, t.index) for t in cluster.cluster.tasks()]
  print(*pids, flush=True)
  time.sleep(600)
"""


def test_tasks_die_with_a_parent_that_is_killed():
  parent = subprocess.Popen(
    [sys.executable, '-c', _PARENT], stdout=subprocess.PIPE, text=True
  )
  pids = [int(pid) for pid in parent.stdout.readline().split()]
  assert len(pids) == 4
  os.kill(parent.pid, signal.SIGKILL)
  parent.communicate()
  deadline = time.monotonic() + 30
  while any(map(_lives, pids)):
    assert time.monotonic() < deadline, 'children outlive their parent'
    time.sleep(0.02)


def _lives(pid: int) -> bool:
  try:
    return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
  except psutil.NoSuchProcess:
    return False
