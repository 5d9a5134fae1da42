"""Metrics of all tasks of a launched job, scraped while it runs."""

import pathlib
import re

import pytest

from tests.programs import monitored
from tests.support import monitored_jobs
from tests.support import scrapes
from tfps.cluster import spec as spec_lib
from tfps.server import job_table
from tfps.server import observation

_ROOT = pathlib.Path(__file__).parents[3]
_SERVING = ('chief:0', 'ps:0', 'ps:1', 'worker:0', 'worker:1')
_TASKS = (*_SERVING, 'evaluator:0')


class _Scrapes:
  """The metrics of a job that runs, by the ports of its tasks."""

  def __init__(self, ports):
    self._ports = ports

  def scrape(self, task='chief:0'):
    return scrapes.scrape(self._ports[task])

  def by_task(self, name, task='chief:0'):
    return scrapes.by_task(self.scrape(task), name)


def _launch(check, folder, how, *options, tasks=_TASKS):
  """Launches a job with a port for the metrics of each task."""
  port = scrapes.free_ports(len(tasks))
  ports = {task: port + i for i, task in enumerate(tasks)}
  return monitored_jobs.launch(
    lambda job: check(job, _Scrapes(ports)),
    folder,
    how,
    f'--metrics_port={port}',
    *options,
  )


def _wait_for_steps(job, found, number):
  job.wait_for(
    lambda: sum(found.by_task('tfps_steps_total').values()) >= number
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


def test_all_tasks_are_scraped_and_counts_are_exact(tmp_path, dashboards):
  def check(job, found):
    _wait_for_steps(job, found, monitored.GATES[0])
    job.wait_for(lambda: all(map(found.scrape, _TASKS)))
    for task in _TASKS:
      (memory,) = found.by_task('tfps_memory_bytes', task).items()
      assert memory[0] == task
      assert memory[1] > 1 << 20

    job.kill('worker:1')
    job.let_go(f'go-{monitored.GATES[0]}')
    job.wait_for(lambda: found.by_task('tfps_returned_tasks_total'))
    _wait_for_steps(job, found, monitored.GATES[1])
    _check_observed(job)
    _check_table(job)
    job.let_go(f'go-{monitored.GATES[1]}')
    job.wait_for(lambda: 'trained' in job.output('chief:0'))
    (reached,) = re.findall(r'trained (\d+)', job.output('chief:0'))
    _check_counts(found.scrape(), int(reached))
    names = {name for task in _TASKS for name, *_ in found.scrape(task)}
    assert dashboards - names == set()

  assert _launch(check, tmp_path, 'coordinator', '--num_evaluators=1') == 0


def _check_counts(found, reached):
  steps = scrapes.by_task(found, 'tfps_steps_total')
  assert set(steps) == {'worker:0', 'worker:1'}
  assert sum(steps.values()) == reached == monitored.STEPS
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


def _check_observed(job):
  """Checks what tasks tell about themselves while the chief waits."""
  observed, _ = observation.observe_job(
    {spec_lib.Task('ps', 1): job.address('ps:1')},
    has_stacks=True,
    timeout_secs=20,
  )
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
  assert f'pid {pid}\n' in job.output('worker:0')


def _check_table(job):
  known = {spec_lib.Task('ps', 0): job.address('ps:0')}
  table = job_table.JobTable(known, timeout_secs=20)
  table.read()
  by_task = {row.task: row for row in table.read()}
  assert list(by_task) == sorted(_SERVING)
  assert {row.state for row in by_task.values()} == {'alive'}
  assert len({row.incarnation for row in by_task.values()}) == len(_SERVING)
  assert by_task['chief:0'].doing.startswith('calls hooks for ')
  assert by_task['worker:1'].event == 'back worker:1'
  workers = [by_task[task] for task in ('worker:0', 'worker:1')]
  assert [row.steps_per_sec for row in workers] == [0, 0]  # all wait
  assert min(row.lag for row in workers) == 0
  assert by_task['ps:0'].bytes_per_sec == 0
  assert by_task['ps:0'].memory_bytes > 1 << 20


@pytest.mark.exhaustive
def test_workers_between_graphs_report_their_own_steps(tmp_path):
  tasks = ('ps:0', 'ps:1', 'worker:0', 'worker:1')
  workers = tasks[2:]

  def check(job, found):
    for gate in monitored.GATES:
      job.let_go(f'go-{gate}')
    job.wait_for(lambda: all('trained' in job.output(task) for task in workers))
    steps = {}
    for task in tasks:
      steps.update(found.by_task('tfps_steps_total', task))
    outputs = ''.join(map(job.output, workers))
    assert set(steps) == set(workers)
    assert sum(steps.values()) == max(
      map(int, re.findall(r'trained (\d+)', outputs))
    )

  options = ('--num_chiefs=0',)
  assert _launch(check, tmp_path, 'between', *options, tasks=tasks) == 0
