"""The launcher and its tasks, as processes."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys

import psutil
import pytest

from tests.support import commands
from tests.support import processes
from tests.support import turns
from tests.support import waiting

_DEADLINE_SECS = 60
_LAUNCH = (sys.executable, '-m', 'tfps.launch')
_PROGRAMS = pathlib.Path(__file__).parents[2] / 'programs'
_PROGRAM = str(_PROGRAMS / 'launched.py')


def _launch(folder, *words, **env):
  """Runs the launcher to its end."""
  return subprocess.run(
    [*_LAUNCH, *words],
    cwd=folder,
    env=os.environ | env,
    capture_output=True,
    text=True,
    timeout=_DEADLINE_SECS,
  )


@contextlib.contextmanager
def _launching(folder, *words):
  """A launcher that runs, and its first lines of output, as they come."""
  process = subprocess.Popen(
    [*_LAUNCH, *words],
    cwd=folder,
    stdout=subprocess.PIPE,
    stderr=(folder / 'said').open('wb'),
    text=True,
    preexec_fn=_heed_signals,
  )
  try:
    yield process
  finally:
    process.kill()
    process.wait()
    process.stdout.close()


def _heed_signals():
  # A suite in the background ignores SIGINT, and one under nohup SIGHUP.
  for number in (signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)


def _pids(process, num_lines):
  """The process ids at the end of so many lines."""
  lines = [process.stdout.readline() for _ in range(num_lines)]
  return [int(line.split()[-1]) for line in lines]


def _descendants(process):
  return psutil.Process(process.pid).children(recursive=True)


def _facts(output):
  """What `tell` has told, by the prefix of its lines."""
  lines = re.findall(r'^\[(\S+)\] (\{.*\})$', output, re.MULTILINE)
  return {task: json.loads(facts) for task, facts in lines}


def test_every_task_runs_the_program(tmp_path):
  options = ['--num_workers=2', '--num_ps=2', '--env=MARK=x']
  done = _launch(tmp_path, *options, _PROGRAM, '--', 'a', '--', 'b')
  assert done.returncode == 0
  facts = _facts(done.stdout)
  assert sorted(facts) == ['chief:0', 'ps:0', 'ps:1', 'worker:0', 'worker:1']
  assert facts['ps:1']['task'] == {'type': 'ps', 'index': 1}
  assert {fact['mark'] for fact in facts.values()} == {'x'}
  assert all(fact['args'] == ['a', '--', 'b'] for fact in facts.values())


def test_an_evaluator_runs_the_program_beside_the_cluster(tmp_path):
  done = _launch(tmp_path, '--num_evaluators=1', '--log_dir=logs', _PROGRAM)
  assert done.returncode == 0, done.stderr
  facts = _facts(done.stdout)
  assert sorted(facts) == ['chief:0', 'evaluator:0', 'ps:0', 'worker:0']
  assert facts['evaluator:0']['task'] == {'type': 'evaluator', 'index': 0}
  assert (tmp_path / 'logs' / 'evaluator-0.log').exists()


def test_every_task_runs_the_module(tmp_path):
  env = {'PYTHONPATH': str(_PROGRAMS)}
  done = _launch(tmp_path, '-m', 'launched', '--num_ps=7', **env)
  assert done.returncode == 0, done.stderr
  facts = _facts(done.stdout)
  assert [fact['args'] for fact in facts.values()] == [['--num_ps=7']] * 3


def test_output_is_kept_where_the_launcher_says(tmp_path):
  done = _launch(tmp_path, _PROGRAM)
  folder = re.search(r'kept in (\S+)\.\n', done.stderr)[1]
  assert folder.startswith('runs/launch/')
  names = sorted(path.name for path in (tmp_path / folder).iterdir())
  assert names == ['chief-0.log', 'ps-0.log', 'worker-0.log']


def test_the_launcher_says_how_to_look_at_the_tasks(tmp_path):
  done = _launch(tmp_path, _PROGRAM)
  said = re.search(r'tfps top --address=(\S+) ', done.stderr)[1]
  (facts, *_) = _facts(done.stdout).values()
  assert said == facts['cluster']['ps'][0]


def test_log_dir_is_where_output_is_kept(tmp_path):
  _launch(tmp_path, '--log_dir=logs', '--num_chiefs=0', _PROGRAM)
  names = sorted(path.name for path in (tmp_path / 'logs').iterdir())
  assert names == ['ps-0.log', 'worker-0.log']
  assert '"index": 0' in (tmp_path / 'logs' / 'worker-0.log').read_text()


def test_the_first_failing_task_gives_its_status(tmp_path):
  done = _launch(tmp_path, _PROGRAM, 'ps=sleep', 'worker=fail', 'chief=sleep')
  assert done.returncode == 7
  assert 'worker:0 failed with status 7' in done.stderr


@pytest.mark.exhaustive
def test_forked_tasks_have_modules_in_place_at_every_start(tmp_path, capfd):
  program = tmp_path / 'program.py'
  program.write_text(
    'import json, os, pathlib, signal, sys, time\n'
    'print("has", "tensorflow" in sys.modules, sys.argv[1:], flush=True)\n'
    'job = json.loads(os.environ["TF_CONFIG"])["task"]["type"]\n'
    'folder = pathlib.Path(__file__).parent\n'
    '(folder / job).touch()\n'
    'if job == "worker":\n'
    '  while not all((folder / j).exists() for j in ("ps", "chief")):\n'
    '    time.sleep(0.01)\n'
    '  os.kill(os.getpid(), signal.SIGKILL)\n'
  )
  options = ['--max_restarts=2', '--grace_secs=60']
  done = commands.launch(capfd, *options, program, '--own', cwd=tmp_path)
  assert done.status == 137
  for task, number in (('worker:0', 3), ('ps:0', 1), ('chief:0', 1)):
    line = f"[{task}] has True ['--own']\n"
    assert done.output.count(line) == number, done.output
  assert 'worker:0 failed with status 137 (SIGKILL)' in done.output


@pytest.mark.exhaustive
def test_what_is_wrong_with_preloaded_modules_is_shown(tmp_path):
  (tmp_path / 'broken.py').write_text('raise RuntimeError("it is broken")\n')
  env = {'PYTHONPATH': str(tmp_path)}
  done = _launch(tmp_path, '--preload=broken', _PROGRAM, **env)
  assert done.returncode == 1
  assert '--preload: The process that imports broken has ended' in done.stderr
  assert 'it is broken' in done.stderr


def test_workers_are_stopped_after_the_chief_if_asked(tmp_path):
  options = ['--chief_ends_job', '--grace_secs=0.2']
  done = _launch(tmp_path, *options, _PROGRAM, 'ps=sleep', 'worker=sleep')
  assert done.returncode == 0
  assert 'ps:0, worker:0 still running' in done.stderr


@pytest.mark.parametrize(
  ('number', 'status'),
  turns.rarely(
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
    but=[(signal.SIGTERM, 143)],
  ),
)
def test_a_signal_stops_all(tmp_path, number, status):
  words = ['ps=sleep', 'worker=sleep', 'chief=sleep_with_child']
  with _launching(tmp_path, _PROGRAM, *words) as process:
    _pids(process, 4)
    family = _descendants(process)
    process.send_signal(number)
    assert process.wait(_DEADLINE_SECS) == status
    processes.wait_for_end(family)
  assert f'Stopping all tasks on {number.name}' in (
    (tmp_path / 'said').read_text()
  )


def test_tasks_that_are_told_to_end_twice_have_their_time(tmp_path):
  program = tmp_path / 'program.py'
  program.write_text(
    'from tfps._utils import signals\nprint(signals.ends_at_once())\n'
  )
  done = _launch(tmp_path, program)
  lines = sorted(done.stdout.splitlines())
  assert lines == [f'[{job}:0] False' for job in ('chief', 'ps', 'worker')]


def test_deaf_tasks_are_killed_after_the_grace(tmp_path):
  words = ['ps=deaf', 'worker=deaf', 'chief=deaf']
  with _launching(tmp_path, '--grace_secs=0.2', _PROGRAM, *words) as process:
    _pids(process, 3)
    family = _descendants(process)
    process.send_signal(signal.SIGINT)
    assert process.wait(_DEADLINE_SECS) == 130
    processes.wait_for_end(family)


def test_a_second_signal_kills_at_once(tmp_path):
  words = ['ps=deaf', 'worker=deaf', 'chief=deaf']
  with _launching(tmp_path, '--grace_secs=999', _PROGRAM, *words) as process:
    _pids(process, 3)
    family = _descendants(process)
    process.send_signal(signal.SIGINT)
    said = tmp_path / 'said'
    waiting.until(lambda: 'Stopping' in said.read_text())
    process.send_signal(signal.SIGINT)
    assert process.wait(_DEADLINE_SECS) == 130
    processes.wait_for_end(family)


@pytest.mark.parametrize(
  'options',
  [
    pytest.param([], id='spawned'),
    pytest.param(
      ['--preload=tensorflow'], id='forked', marks=pytest.mark.exhaustive
    ),
  ],
)
def test_a_killed_launcher_leaves_nothing(tmp_path, options):
  words = ['ps=deaf', 'worker=sleep_with_child', 'chief=sleep_with_child']
  with _launching(tmp_path, *options, _PROGRAM, *words) as process:
    pids = _pids(process, 5)
    family = _descendants(process)
    assert set(pids) <= {child.pid for child in family}
    process.kill()
    processes.wait_for_end(family)


def test_a_reader_that_goes_away_ends_the_job(tmp_path):
  words = ['ps=sleep', 'worker=sleep', 'chief=tell']
  with _launching(tmp_path, _PROGRAM, *words) as process:
    process.stdout.close()
    assert process.wait(_DEADLINE_SECS) == 141
  assert 'SIGPIPE' in (tmp_path / 'said').read_text()


def test_dry_run_prints_what_a_shell_can_run(tmp_path):
  done = _launch(
    tmp_path, '--dry_run', '--env=MARK=two words', _PROGRAM, "it's", '$HOME'
  )
  assert list(tmp_path.iterdir()) == []
  names, commands = (
    done.stdout.splitlines()[::2],
    done.stdout.splitlines()[1::2],
  )
  assert names == ['# chief:0', '# ps:0', '# worker:0']
  output = subprocess.check_output(['sh', '-c', commands[1]], text=True)
  facts = json.loads(output)
  assert sorted(facts.pop('cluster')) == ['chief', 'ps', 'worker']
  assert facts == {
    'task': {'type': 'ps', 'index': 0},
    'args': ["it's", '$HOME'],
    'mark': 'two words',
    'tmp': os.environ.get('TMPDIR'),
  }


def test_servers_end_by_themselves_when_the_chief_is_done(tmp_path, capfd):
  program = _PROGRAMS / 'served.py'
  done = commands.launch(capfd, '--grace_secs=60', program, cwd=tmp_path)
  assert done.status == 0, done.output
  assert '[chief:0] count 10\n' in done.output
  assert '[launch] Stopping' not in done.output


def test_a_frozen_task_is_killed_and_started_again(tmp_path, capfd):
  done = commands.launch(
    capfd,
    '--num_workers=1',
    '--num_chiefs=0',
    '--silent_secs=2',
    '--max_restarts=2',
    _PROGRAMS / 'freezes.py',
    tmp_path,
    cwd=tmp_path,
  )
  assert done.status == 0, done.output
  said = 'worker:0 has not answered for 2 seconds. Killing it.'
  assert said in done.output
  assert 'Starting it again' in done.output
