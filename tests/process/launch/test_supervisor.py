import os
import signal
import sys

import psutil
import pytest

from tests.support import processes
from tfps.cluster import spec as spec_lib
from tfps.launch import supervisor
from tfps.launch import task_output

_PS = spec_lib.Task('ps', 0)
_EVALUATOR = spec_lib.Task('evaluator', 0)
_WORKERS = (spec_lib.Task('worker', 0), spec_lib.Task('worker', 1))

_SLEEP = 'import time; time.sleep(600)'
_IGNORE_SIGTERM = f"""
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('deaf', flush=True)
{_SLEEP}
"""
# Fails once somebody else has written that it is deaf.
_FAIL_LATER = """
import os, sys, time
while 'deaf' not in open(os.environ['PEER_LOG']).read():
  time.sleep(0.05)
sys.exit(9)
"""
_LEAVE_A_CHILD = """
import subprocess, sys
child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])
print('child', child.pid, flush=True)
"""


def _supervise(folder, programs, **options):
  """Runs a Python program for each task: the status and what was said."""
  with (
    (folder / 'own').open('wb') as own_stream,
    (folder / 'shown').open('wb') as stream,
  ):
    output = task_output.TaskOutput(
      list(programs), folder / 'logs', stream=stream, own_stream=own_stream
    )
    commands = [
      supervisor.Command(
        task,
        (sys.executable, '-c', program),
        {**os.environ, 'PEER_LOG': str(output.path(_WORKERS[1]))},
        serves=task.job == 'ps',
        evaluates=task.job == 'evaluator',
      )
      for task, program in programs.items()
    ]
    status = supervisor.Supervisor(commands, output, **options).run()
  return status, (folder / 'own').read_text(), (folder / 'shown').read_text()


def test_is_done_when_all_tasks_are(tmp_path):
  programs = dict.fromkeys(_WORKERS, 'print("hello")')
  status, said, shown = _supervise(tmp_path, programs)
  assert status == 0
  assert said == ''
  assert sorted(shown.splitlines()) == ['[worker:0] hello', '[worker:1] hello']
  assert (tmp_path / 'logs' / 'worker-1.log').read_text() == 'hello\n'


@pytest.mark.parametrize(
  ('program', 'expected', 'words'),
  [
    pytest.param('raise SystemExit(3)', 3, 'status 3', id='status'),
    pytest.param('1 / 0', 1, 'ZeroDivisionError', id='exception'),
    pytest.param(
      'import os; os.kill(os.getpid(), 9)', 137, '137 (SIGKILL)', id='killed'
    ),
    pytest.param('import os; os.abort()', 134, '(SIGABRT)', id='aborted'),
    pytest.param('raise SystemExit(129)', 129, '(SIGHUP)', id='129'),
  ],
)
def test_the_first_failing_task_is_the_cause(
  tmp_path, program, expected, words
):
  programs = {_PS: _SLEEP, _WORKERS[0]: _SLEEP, _WORKERS[1]: program}
  status, said, _ = _supervise(tmp_path, programs)
  assert status == expected
  assert 'worker:1 failed' in said
  assert words in said
  assert 'worker-1.log' in said
  assert 'worker:0 failed' not in said


def test_the_cause_comes_with_its_last_lines(tmp_path):
  program = 'for i in range(100): print("line", i)\nraise SystemExit(1)'
  _, said, _ = _supervise(tmp_path, {_WORKERS[0]: program})
  assert 'line 99\n' in said
  assert 'line 90\n' in said
  assert 'line 89\n' not in said


def test_a_task_that_ignores_sigterm_is_killed_after_the_grace(tmp_path):
  programs = {_WORKERS[0]: _FAIL_LATER, _WORKERS[1]: _IGNORE_SIGTERM}
  status, said, _ = _supervise(tmp_path, programs, grace_secs=0.5)
  assert status == 9
  assert 'Killing worker:1, still running 0.5 seconds after SIGTERM' in said


def test_ps_that_never_end_are_stopped_once_the_others_are_done(tmp_path):
  programs = {_PS: _SLEEP, _WORKERS[0]: 'pass', _WORKERS[1]: 'pass'}
  status, said, _ = _supervise(tmp_path, programs, grace_secs=0.5)
  assert status == 0
  assert 'ps:0 still running 0.5 seconds after the others were done' in said


def test_ps_have_the_grace_to_end_by_themselves(tmp_path):
  slow_end = 'import time; time.sleep(0.3); print("saved")'
  programs = {_PS: slow_end, _WORKERS[0]: 'pass'}
  status, said, shown = _supervise(tmp_path, programs)
  assert (status, said) == (0, '')
  assert '[ps:0] saved' in shown


def test_a_ps_that_fails_at_the_end_is_a_failure(tmp_path):
  programs = {
    _PS: 'import time; time.sleep(0.3); raise SystemExit(4)',
    _WORKERS[0]: 'pass',
  }
  assert _supervise(tmp_path, programs)[0] == 4


def _until_third_start(folder, status):
  """A program that fails on its first two starts."""
  return (
    f'import pathlib\n'
    f'starts = pathlib.Path({str(folder / "starts")!r}).open("a+")\n'
    f'starts.write(".")\n'
    f'raise SystemExit(0 if starts.tell() == 3 else {status})\n'
  )


@pytest.mark.parametrize(
  ('max_restarts', 'status', 'expected', 'starts'),
  [
    pytest.param(2, 137, 0, 3, id='enough'),
    pytest.param(1, 137, 137, 2, id='too few'),
    pytest.param(0, 137, 137, 1, id='none'),
    pytest.param(2, 127, 127, 1, id='a retry will not help'),
  ],
)
def test_restarts_are_counted(tmp_path, max_restarts, status, expected, starts):
  programs = {_WORKERS[0]: _until_third_start(tmp_path, status)}
  found, said, _ = _supervise(tmp_path, programs, max_restarts=max_restarts)
  assert found == expected
  assert len((tmp_path / 'starts').read_text()) == starts
  assert said.count('Starting it again') == starts - 1


def _first_then(folder, name, program):
  """What does something on its first start, and nothing later on."""
  path = str(folder / name)
  return (
    f'import os, time\n'
    f'open({path!r}, "a").write(".")\n'
    f'if open({path!r}).read() == ".":\n'
    f'  {program}\n'
    f'print("again", flush=True)\n'
  )


@pytest.mark.parametrize(
  ('status', 'expected'),
  [pytest.param(1, 0, id='error'), pytest.param(2, 2, id='something else')],
)
def test_an_error_soon_after_a_loss_is_put_down_to_it(
  tmp_path, status, expected
):
  later = f"""while 'again' not in open(os.environ['PEER_LOG']).read():
    time.sleep(0.05)
  raise SystemExit({status})"""
  programs = {
    _WORKERS[0]: _first_then(tmp_path, 'first', later),
    _WORKERS[1]: _first_then(tmp_path, 'lost', 'os.kill(os.getpid(), 9)'),
  }
  found, said, _ = _supervise(tmp_path, programs, max_restarts=3)
  assert found == expected
  words = 'worker:0 failed with status 1, soon after worker:1 was lost.'
  assert (words in said) == (expected == 0)


def test_what_a_task_leaves_behind_is_killed(tmp_path):
  status, _, shown = _supervise(tmp_path, {_WORKERS[0]: _LEAVE_A_CHILD})
  assert status == 0
  pid = int(shown.split()[-1])
  processes.wait_for_end([p for p in psutil.process_iter() if p.pid == pid])


def test_signal_handlers_are_put_back(tmp_path):
  before = signal.getsignal(signal.SIGTERM)
  _supervise(tmp_path, {_WORKERS[0]: 'pass'})
  assert signal.getsignal(signal.SIGTERM) is before


def _wait_for(path):
  return f"""
import os, time
while not os.path.exists({str(path)!r}):
  time.sleep(0.05)
"""


def test_an_evaluator_that_fails_shows_and_does_not_end_training(tmp_path):
  fail = f'open({str(tmp_path / "failing")!r}, "w").close(); raise OSError("x")'
  train = _wait_for(tmp_path / 'failing') + 'print("trained")'
  programs = {_WORKERS[0]: train, _EVALUATOR: fail}
  status, said, shown = _supervise(tmp_path, programs)
  assert status == 1
  assert 'evaluator:0 failed with status 1. The others go on.' in said
  assert said.count('OSError: x') == 1
  assert '[worker:0] trained' in shown


def test_a_failure_of_training_counts_more_than_that_of_an_evaluator(tmp_path):
  programs = {
    _WORKERS[0]: _wait_for(tmp_path / 'failing') + 'raise SystemExit(9)',
    _EVALUATOR: f'open({str(tmp_path / "failing")!r}, "w"); raise OSError',
  }
  status, said, _ = _supervise(tmp_path, programs)
  assert status == 9
  assert 'worker:0 failed with status 9.' in said


def test_an_evaluator_is_told_when_training_is_done(tmp_path):
  evaluate = _wait_for(tmp_path / 'end') + 'print("evaluated")'
  programs = {_PS: _SLEEP, _WORKERS[0]: 'pass', _EVALUATOR: evaluate}
  status, said, shown = _supervise(
    tmp_path, programs, grace_secs=0.5, end_file=tmp_path / 'end'
  )
  assert status == 0
  assert '[evaluator:0] evaluated' in shown
  assert 'ps:0 still running 0.5 seconds after the others were done' in said


def test_an_evaluator_that_never_ends_is_stopped(tmp_path):
  programs = {_WORKERS[0]: 'pass', _EVALUATOR: _SLEEP}
  status, said, _ = _supervise(tmp_path, programs, evaluator_secs=0.5)
  assert status == 0
  assert 'evaluator:0 still running 0.5 seconds after training was' in said
