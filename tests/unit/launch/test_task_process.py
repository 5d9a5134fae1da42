import io
import json
import pickle
import sys
import threading

import psutil
import pytest

from tests.support import processes
from tests.support import waiting
from tfps.cluster import spec as spec_lib
from tfps.launch import function
from tfps.launch import job as job_lib
from tfps.launch import task_process

_CLUSTER = spec_lib.Cluster(
  {'chief': ['localhost:1'], 'ps': ['localhost:2'], 'worker': ['localhost:3']}
)
_CHIEF = spec_lib.Task('chief', 0)
_PS = spec_lib.Task('ps', 0)


def _order(folder, text='', *, task=_PS, call=None, **options):
  (folder / 'program.py').write_text(text)
  job = job_lib.Job(('program.py', '--x'), grace_secs=2.0, **options)
  folders = (str(folder / 'nowhere'), str(folder))
  return task_process.Order(job, task, call, folders, silent_secs=0)


def _call(name, *args):
  return function.Call.of(name, args, pickler='pickle')


def test_a_program_runs_in_the_first_folder_that_has_it(tmp_path):
  text = 'import os, sys; print(os.getcwd(), sys.argv, os.environ["TF_CONFIG"])'
  stream = io.BytesIO()
  order = _order(tmp_path, text)
  outcome = task_process.TaskProcess(order, stream=stream).run(_CLUSTER)
  folder, rest = stream.getvalue().decode().split(' ', 1)
  assert outcome.status == 0
  assert folder == str(tmp_path)
  assert rest.startswith("['program.py', '--x'] {")
  config = json.loads(rest.partition('] ')[2])
  assert config['task'] == {'type': 'ps', 'index': 0}
  assert outcome.last_lines == stream.getvalue().decode()
  assert outcome.result is None


def test_the_environment_is_that_of_the_job_and_the_engine(tmp_path):
  text = 'import os; print(os.environ["A"], os.environ["B"])'
  order = _order(tmp_path, text, env={'A': '1', 'B': '2'})
  process = task_process.TaskProcess(order, stream=io.BytesIO())
  assert process.run(_CLUSTER, {'B': '3'}).last_lines == '1 3\n'


def test_a_missing_program_is_named(tmp_path):
  order = _order(tmp_path)
  (tmp_path / 'program.py').unlink()
  outcome = task_process.TaskProcess(order, stream=io.BytesIO()).run(_CLUSTER)
  assert outcome.status == 1
  assert "'program.py' is not on" in outcome.last_lines
  assert f'{tmp_path}/nowhere or {tmp_path}' in outcome.last_lines


def test_a_failure_has_its_status_and_last_lines(tmp_path):
  order = _order(tmp_path, 'import sys; print("why"); sys.exit(7)')
  outcome = task_process.TaskProcess(order, stream=io.BytesIO()).run(_CLUSTER)
  error = outcome.error(_PS)
  assert (error.task, error.status) == ('ps:0', 7)
  assert str(error) == (
    'ps:0 failed with status 7. Its last output:\nwhy\n'
    '[launch] ps:0 failed with status 7.\n'
  )


def test_a_killed_program_is_started_again(tmp_path):
  text = (
    'import os, pathlib, signal\n'
    'path = pathlib.Path("been"); been = path.exists(); path.touch()\n'
    'print("been", been, flush=True)\n'
    'been or os.kill(os.getpid(), signal.SIGKILL)\n'
  )
  order = _order(tmp_path, text, max_restarts=1)
  stream = io.BytesIO()
  outcome = task_process.TaskProcess(order, stream=stream).run(_CLUSTER)
  assert outcome.status == 0
  assert b'been False\n' in stream.getvalue()
  assert b'restarts left: 0' in stream.getvalue()
  assert stream.getvalue().endswith(b'been True\n')


def test_stop_ends_a_program_and_what_it_has_started(tmp_path):
  text = (
    'import subprocess, time\n'
    'child = subprocess.Popen(["sleep", "600"])\n'
    'print(child.pid, flush=True); time.sleep(600)\n'
  )
  stream = io.BytesIO()
  process = task_process.TaskProcess(_order(tmp_path, text), stream=stream)
  found = []
  thread = threading.Thread(target=lambda: found.append(process.run(_CLUSTER)))
  thread.start()
  waiting.until(stream.getvalue, timeout_secs=30)
  child = psutil.Process(int(stream.getvalue()))
  process.stop()
  thread.join(30)
  assert found[0].status == 143
  processes.wait_for_end([child])


def test_a_program_that_was_stopped_before_does_not_start(tmp_path):
  process = task_process.TaskProcess(_order(tmp_path, 'print(1)'))
  process.stop()
  outcome = process.run(_CLUSTER)
  assert (outcome.status, outcome.last_lines) == (143, '')


def test_a_lost_process_log_is_continued_and_an_earlier_runs_is_not(tmp_path):
  order = _order(tmp_path, 'print("line")', log_dir=tmp_path / 'logs')
  for continues in (False, False, True):
    task_process.TaskProcess(
      order, continues=continues, stream=io.BytesIO()
    ).run(_CLUSTER)
  assert (tmp_path / 'logs' / 'ps-0.log').read_text() == 'line\nline\n'


@pytest.mark.parametrize(
  ('has_prefixes', 'shown'), [(False, b'line\n'), (True, b'[ps:0] line\n')]
)
def test_lines_have_the_tasks_name_if_wanted(tmp_path, has_prefixes, shown):
  order = _order(tmp_path, 'print("line")', log_dir=tmp_path / 'logs')
  order = task_process.Order(
    order.job, _PS, folders=order.folders, has_prefixes=has_prefixes
  )
  stream = io.BytesIO()
  task_process.TaskProcess(order, stream=stream).run(_CLUSTER)
  assert stream.getvalue() == shown


def test_the_chief_hands_back_what_its_function_returns(tmp_path):
  call = _call(divmod, 17, 5)
  results = {}
  for task in (_CHIEF, _PS):
    order = _order(tmp_path, task=task, call=call)
    outcome = task_process.TaskProcess(order, stream=io.BytesIO()).run(_CLUSTER)
    assert outcome.status == 0, outcome.last_lines
    results[task] = outcome.result
  assert pickle.loads(results[_CHIEF]) == (3, 2)
  assert results[_PS] is None


def test_a_function_that_raises_fails_with_its_message(tmp_path):
  order = _order(tmp_path, call=_call(int, 'x'))
  outcome = task_process.TaskProcess(order, stream=io.BytesIO()).run(_CLUSTER)
  assert outcome.status == 1
  assert "invalid literal for int() with base 10: 'x'" in outcome.last_lines


def test_a_function_sees_the_modules_of_the_engines_process(
  tmp_path, monkeypatch
):
  (tmp_path / 'lib').mkdir()
  (tmp_path / 'lib' / 'found_there.py').write_text('def value(): return 5\n')
  monkeypatch.syspath_prepend(tmp_path / 'lib')
  import found_there

  order = _order(tmp_path, task=_CHIEF, call=_call(found_there.value))
  outcome = task_process.TaskProcess(order, stream=io.BytesIO()).run(_CLUSTER)
  assert pickle.loads(outcome.result) == 5
  del sys.modules['found_there']


def test_what_cannot_be_sent_is_named():
  with pytest.raises(ValueError, match=r'<lambda> cannot be sent to the tasks'):
    _call(lambda: 1)


def test_what_cannot_be_returned_is_named():
  call = _call(threading.Lock)
  with pytest.raises(
    ValueError, match=r'returned a lock, which cannot be sent'
  ):
    call.run()
