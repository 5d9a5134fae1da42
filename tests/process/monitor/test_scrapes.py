"""Metrics of all tasks of a launched job, scraped while it runs."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest

from tests.programs import monitored
from tests.support import scrapes
from tests.support import waiting
from tfps.cluster import spec as spec_lib
from tfps.server import observation
from tfps.server import top_command

_ROOT = pathlib.Path(__file__).parents[3]
_PROGRAM = _ROOT / 'tests' / 'programs' / 'monitored.py'
_SERVING = ('chief:0', 'ps:0', 'ps:1', 'worker:0', 'worker:1')
_TASKS = (*_SERVING, 'evaluator:0')


class _Job:
  """A launched job, and the ports of its tasks' metrics."""

  def __init__(self, process, folder, ports):
    self.process = process
    self.folder = folder
    self.ports = ports

  def scrape(self, task='chief:0'):
    return scrapes.scrape(self.ports[task])

  def by_task(self, name, task='chief:0'):
    return scrapes.by_task(self.scrape(task), name)

  def let_go(self, name):
    (self.folder / name).touch()

  def kill(self, task):
    """Kills a task; the launcher starts it again."""
    (pid,) = re.findall(rf'^\[{task}\] pid (\d+)$', self.output(), re.M)
    os.kill(int(pid), signal.SIGKILL)

  def output(self):
    return (self.folder / 'output').read_text()


@contextlib.contextmanager
def _launched(folder, how, *options, tasks=_TASKS):
  port = scrapes.free_ports(len(tasks))
  words = [
    *(sys.executable, '-m', 'tfps.launch', '--num_workers=2', '--num_ps=2'),
    *('--preload=tensorflow,keras', '--max_restarts=1', '--log_dir=logs'),
    *(f'--metrics_port={port}', *options, _PROGRAM, folder, how),
  ]
  with (folder / 'output').open('wb') as output:
    process = subprocess.Popen(
      words, cwd=folder, stdout=output, stderr=subprocess.STDOUT
    )
  ports = {task: port + i for i, task in enumerate(tasks)}
  try:
    yield _Job(process, folder, ports)
  finally:
    process.terminate()
    try:
      process.wait(30)
    finally:
      process.kill()


def _wait_for(job, condition):
  waiting.until(
    lambda: job.process.poll() is not None or condition(),
    timeout_secs=120,
    every_secs=0.2,  # each look is a scrape, which takes time of the job's
    say=lambda: job.output()[-3000:],
  )
  assert job.process.poll() is None, job.output()[-3000:]


def _wait_for_steps(job, number):
  _wait_for(
    job, lambda: sum(job.by_task('tfps_steps_total').values()) >= number
  )


@pytest.fixture(scope='module')
def dashboards():
  """Names of metrics in the dashboard and the alerts."""
  texts = [
    path.read_text()
    for path in (_ROOT / 'launch' / 'monitoring').iterdir()
    if path.suffix in ('.json', '.yml')
  ]
  return {name for text in texts for name in re.findall(r'\btfps_\w+', text)}


def test_all_tasks_are_scraped_and_counts_are_exact(
  tmp_path, dashboards, capsys
):
  with _launched(tmp_path, 'coordinator', '--num_evaluators=1') as job:
    _wait_for_steps(job, monitored.GATES[0])
    _wait_for(job, lambda: all(map(job.scrape, _TASKS)))
    for task in _TASKS:
      (memory,) = job.by_task('tfps_memory_bytes', task).items()
      assert memory[0] == task
      assert memory[1] > 1 << 20

    job.kill('worker:1')
    job.let_go(f'go-{monitored.GATES[0]}')
    _wait_for(job, lambda: job.by_task('tfps_returned_tasks_total'))
    _wait_for_steps(job, monitored.GATES[1])
    _check_observed(job)
    _check_table(job, capsys)
    job.let_go(f'go-{monitored.GATES[1]}')
    _wait_for_steps(job, monitored.STEPS)
    _wait_for(job, lambda: 'trained' in job.output())
    found = job.scrape()
    names = {name for task in _TASKS for name, *_ in job.scrape(task)}
    job.let_go('end')
    assert job.process.wait(120) == 0, job.output()[-3000:]

  (reached,) = re.findall(r'trained (\d+)', job.output())
  steps = scrapes.by_task(found, 'tfps_steps_total')
  assert set(steps) == {'worker:0', 'worker:1'}
  assert sum(steps.values()) == int(reached) == monitored.STEPS
  one_loss = {'worker:1': 1}
  assert scrapes.by_task(found, 'tfps_lost_tasks_total') == one_loss
  assert scrapes.by_task(found, 'tfps_returned_tasks_total') == one_loss
  examples = scrapes.by_task(found, 'tfps_examples_total')
  assert set(examples) == set(steps)
  # Those of an interrupted execution are not known.
  assert sum(examples.values()) <= monitored.BATCH * monitored.STEPS
  for name in (
    'tfps_snapshots_total',
    'tfps_updates_total',
    'tfps_staleness_updates_count',
    'tfps_transferred_bytes_total',
    'tfps_table_evicted_keys_total',
  ):
    assert scrapes.by_task(found, name)['chief:0'] > 0, name
  assert dashboards - names == set()


def _check_observed(job):
  """Checks what tasks tell about themselves while the chief waits."""
  (address,) = re.findall(r'ps:1 is ready at (\S+)\.', job.output())
  observed, _ = observation.observe_job(
    {spec_lib.Task('ps', 1): address}, has_stacks=True, timeout_secs=20
  )
  assert [str(task) for task in observed] == sorted(_SERVING)
  assert {str(task): found.task for task, found in observed.items()} == {
    task: task for task in _SERVING
  }
  chief = observed[spec_lib.Task('chief', 0)]
  assert 'in wait_at_gates' in chief.stacks
  assert 'calls hooks' in [what for what, *_ in chief.activities]
  assert chief.last_event == 'back worker:1'
  for task in ('ps:0', 'worker:1'):
    assert 'in _listen' in observed[spec_lib.Task.parse(task)].stacks
  pid = observed[spec_lib.Task('worker', 0)].pid
  assert f'[worker:0] pid {pid}\n' in job.output()


def _check_table(job, capsys):
  (address,) = re.findall(r'ps:0 is ready at (\S+)\.', job.output())
  capsys.readouterr()
  words = ['--once', '--json', '--every_secs=0.5', '--timeout_secs=20']
  assert top_command.main([*words, f'--address={address}']) == 0
  rows = json.loads(capsys.readouterr().out)['tasks']
  by_task = {row['task']: row for row in rows}
  assert list(by_task) == sorted(_SERVING)
  assert {row['state'] for row in rows} == {'alive'}
  assert len({row['incarnation'] for row in rows}) == len(_SERVING)
  assert by_task['chief:0']['doing'].startswith('calls hooks for ')
  assert by_task['worker:1']['event'] == 'back worker:1'
  workers = [by_task[task] for task in ('worker:0', 'worker:1')]
  assert [row['steps_per_sec'] for row in workers] == [0, 0]  # all wait
  assert min(row['lag'] for row in workers) == 0
  assert by_task['ps:0']['bytes_per_sec'] == 0
  assert by_task['ps:0']['memory_bytes'] > 1 << 20


@pytest.mark.exhaustive
def test_workers_between_graphs_report_their_own_steps(tmp_path):
  tasks = ('ps:0', 'ps:1', 'worker:0', 'worker:1')
  options = ('--num_chiefs=0',)
  with _launched(tmp_path, 'between', *options, tasks=tasks) as job:
    for gate in monitored.GATES:
      job.let_go(f'go-{gate}')
    _wait_for(job, lambda: job.output().count('trained') == 2)
    steps = {}
    for task in tasks:
      steps.update(job.by_task('tfps_steps_total', task))
    global_step = max(map(int, re.findall(r'trained (\d+)', job.output())))
    job.let_go('end')
    assert job.process.wait(120) == 0, job.output()[-3000:]
  assert set(steps) == {'worker:0', 'worker:1'}
  assert sum(steps.values()) == global_step
