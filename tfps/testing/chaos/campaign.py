"""Trains repeatedly, each time with a fault, and reports the outcomes.

    python -m tfps.testing.chaos.campaign --faults=kill,hang --runs=3 --seed=1

Each run starts a cluster of real processes, injects a fault into one task at a
moment that the seed chooses, and waits until training ends. The table has a
line for each fault, job and mode. The fault `none` is a run without a fault,
for comparison; `fill` fills the disk to which the chief writes snapshots.
"""

from collections.abc import Sequence
import concurrent.futures
import contextlib
import dataclasses
import json
import pathlib
import random
import shutil
import sys
import tempfile
import time
from typing import Any

from absl import app
from absl import flags

from tfps import errors
from tfps._utils import deadlines
from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib
from tfps.testing import faults as faults_lib
from tfps.testing import process_cluster
from tfps.testing.chaos import disks
from tfps.testing.chaos import outcomes as outcomes_lib
from tfps.testing.chaos import progress

_MODES = ['coordinator', 'fit', 'between_graph', 'between_graph_fit']
_JOBS = ['worker', 'ps', 'chief']

_FAULTS = flags.DEFINE_list('faults', ['kill', 'hang'], 'Kinds of faults.')
_FAULTY_JOBS = flags.DEFINE_list('jobs', _JOBS, 'Jobs that have faults.')
_IN_MODES = flags.DEFINE_list('modes', _MODES, 'Modes of training.')
_RUNS = flags.DEFINE_integer(
  'runs', 3, 'Runs of each combination.', lower_bound=1
)
_AT_ONCE = flags.DEFINE_integer(
  'at_once', 1, 'Number of concurrent runs.', lower_bound=1
)
_SEED = flags.DEFINE_integer('seed', 1, 'Seed of moments and tasks.')
_STEPS = flags.DEFINE_integer('steps', 1500, 'Steps of each run.')
_TIMEOUT = flags.DEFINE_float('timeout_secs', 180.0, 'Timeout of each run.')
_EVERY = flags.DEFINE_float('every_secs', 1.0, 'Seconds between snapshots.')
_REPLICAS = flags.DEFINE_integer('replicas', 0, 'Replicas of each variable.')
_REPLICATE_EVERY = flags.DEFINE_float(
  'replicate_every_secs',
  None,
  'Seconds between copies to replicas; by default, they get each update.',
)
_TAKE_OVER = flags.DEFINE_float(
  'take_over_secs', None, 'Seconds until another ps hosts a lost one.'
)
_FOR = flags.DEFINE_list(
  'for_secs', ['0.1', '1'], 'Least and greatest duration of a fault.'
)
_SPARES = flags.DEFINE_bool(
  'spares', True, 'Whether tasks are forked with TensorFlow imported.'
)
_KEEP_LOGS = flags.DEFINE_string(
  'keep_logs', None, 'Folder for the logs of failed runs.'
)
_OUTPUT = flags.DEFINE_string('output', None, 'File for the outcomes as JSON.')
_PAGE = flags.DEFINE_string(
  'page', None, 'Markdown file to update with the table, between its marks.'
)
_TABLE = flags.DEFINE_string('table', 'campaign', 'Name of these marks.')

_NONE = 'none'
# The jobs of faults that do not apply to every job.
_ONLY = {_NONE: [_NONE], 'fill': ['chief']}
_DISK_BYTES = 2**24
_PER_EXECUTION = 5  # steps
# Imported before tasks are forked, as by `tfps launch --preload`.
_PRELOAD = ('tensorflow', 'keras')
# Servers are not forked unless their command is the default one.
_SERVE = (sys.executable, '-u', '-m', 'tfps.server')
_FAULT_AT = (0.1, 0.5)  # as parts of all steps


def main(args: Sequence[str]) -> int:
  """Runs the campaign and prints its table.

  Args:
    args: the command line without flags.

  Returns:
    0 if every run was completed; otherwise 1.

  Raises:
    app.UsageError: there are arguments other than flags.
  """
  if len(args) > 1:
    raise app.UsageError(f'{args[1]!r} is no flag. Leave it out; see --help.')
  seeds = random.Random(_SEED.value)
  cells = [
    (fault, job, mode, random.Random(seeds.getrandbits(64)))
    for _ in range(_RUNS.value)
    for fault in _FAULTS.value
    for job in _ONLY.get(fault, _FAULTY_JOBS.value)
    for mode in _IN_MODES.value
  ]
  outcomes = []
  with concurrent.futures.ThreadPoolExecutor(_AT_ONCE.value) as pool:
    for outcome in pool.map(lambda cell: run(*cell), cells):
      outcomes.append(outcome)
      print(outcome, file=sys.stderr, flush=True)
  print(outcomes_lib.table(outcomes))
  if _OUTPUT.value:
    found = [dataclasses.asdict(outcome) for outcome in outcomes]
    pathlib.Path(_OUTPUT.value).write_text(json.dumps(found, indent=1))
  if _PAGE.value:
    page = pathlib.Path(_PAGE.value)
    page.write_text(
      outcomes_lib.with_table(
        page.read_text(), outcomes_lib.table(outcomes), name=_TABLE.value
      )
    )
  return 0 if all(outcome.completed for outcome in outcomes) else 1


def run(
  kind: str, job: str, mode: str, choices: random.Random
) -> outcomes_lib.Outcome:
  """Trains once with a fault.

  Args:
    kind: the fault's kind.
    job: the job of the task that has it.
    mode: the mode of training.
    choices: chooses the task and the fault's moment and duration.
  """
  with contextlib.ExitStack() as stack:
    folder = stack.enter_context(
      tempfile.TemporaryDirectory(prefix='tfps-campaign-')
    )
    snapshots = pathlib.Path(folder, 'snapshots')
    if kind == 'fill':
      snapshots = stack.enter_context(disks.small_disk(_DISK_BYTES))
    program = (
      *(sys.executable, '-m', 'tfps.testing.chaos.campaign_task'),
      *(f'--mode={mode}', f'--steps={_STEPS.value}'),
      f'--directory={snapshots}',
      f'--steps_per_execution={_PER_EXECUTION}',
      f'--every_secs={_EVERY.value}',
      f'--replicas={_REPLICAS.value}',
      *_if_given(_TAKE_OVER),
      *_if_given(_REPLICATE_EVERY),
    )
    logs = pathlib.Path(folder, 'logs')
    with process_cluster.ProcessCluster(
      2,
      2,
      commands=_commands(mode, program),
      preload=_PRELOAD if _SPARES.value else (),
      on_hosts=kind == 'cut',
      log_dir=logs,
    ) as cluster:
      step = choices.uniform(*_FAULT_AT) * _STEPS.value
      try:
        _wait_for_step(cluster, step)
        if kind == _NONE:
          outcome = _run_without_fault(cluster, mode)
        else:
          fault = _choose(cluster, kind, job, choices, directory=snapshots)
          outcome = _run_with_fault(cluster, fault, mode)
      except errors.Error as error:
        detail = errors.first_line(error)
        outcome = outcomes_lib.Outcome(
          kind, job, mode, completed=False, detail=detail
        )
    if _KEEP_LOGS.value and not outcome.completed:
      kept = pathlib.Path(
        _KEEP_LOGS.value, f'{kind}-{job}-{mode}-{time.time()}'
      )
      shutil.copytree(logs, kept)
    return outcome


def _commands(mode: str, program: Sequence[str]) -> dict[str, Sequence[str]]:
  """Returns the command of each job."""
  commands: dict[str, Sequence[str]] = {}
  if not _SPARES.value:
    commands = {'ps': _SERVE, 'worker': _SERVE}
  if mode.startswith('between'):
    together = (*program, '--together')
    return {**commands, 'chief': together, 'worker': together}
  return {**commands, 'chief': program}


def _if_given(flag: flags.FlagHolder[Any]) -> list[str]:
  return [] if flag.value is None else [f'--{flag.name}={flag.value}']


def _choose(
  cluster: process_cluster.ProcessCluster,
  kind: str,
  job: str,
  choices: random.Random,
  *,
  directory: pathlib.Path,
) -> faults_lib.Fault:
  tasks = cluster.cluster.tasks(job)
  return faults_lib.Fault(
    kind,
    choices.choice(tasks),
    at_secs=0.0,
    for_secs=choices.uniform(*map(float, _FOR.value)),
    directory=directory if kind == 'fill' else None,
  )


def _run_with_fault(
  cluster: process_cluster.ProcessCluster, fault: faults_lib.Fault, mode: str
) -> outcomes_lib.Outcome:
  trainers = _trainers(cluster, mode)
  with faults_lib.Faults(cluster, [fault]) as happening:
    for task in trainers:
      # A restarted worker may come after the others have ended.
      if task != fault.task or task.job == 'chief':
        _wait_for_end(cluster, task)
  events = happening.events
  outcome = _outcome(
    cluster, fault.kind, fault.task.job, mode, events[0].at if events else 0.0
  )
  return dataclasses.replace(
    outcome, completed=outcome.completed and bool(events)
  )


def _run_without_fault(
  cluster: process_cluster.ProcessCluster, mode: str
) -> outcomes_lib.Outcome:
  began = time.time()
  for task in _trainers(cluster, mode):
    _wait_for_end(cluster, task)
  return _outcome(cluster, _NONE, _NONE, mode, began)


def _outcome(
  cluster: process_cluster.ProcessCluster,
  kind: str,
  job: str,
  mode: str,
  began: float,
) -> outcomes_lib.Outcome:
  """Returns the outcome according to the logs of the tasks that train."""
  logs = [cluster.log(t.job, t.index) for t in _trainers(cluster, mode)]
  counts = [c for log in logs for c in progress.numbers(log, 'count')]
  steps = [progress.numbers(log, 'at') for log in logs]
  times = [at for s in steps for _, at in s]
  lost = max(progress.set_back([step for step, _ in s]) for s in steps)
  # The task that counts last counts the steps of all others.
  least, most, step, _ = max(counts, key=lambda c: c[3], default=[0.0] * 4)
  paused_at, resumed_at = progress.longest_gap(times, began)
  # Keras counts a repeated execution twice.
  is_fit = mode.endswith('fit')
  done = _PER_EXECUTION * len(times) if is_fit else step
  missing, doubled = max(0, round(done - least)), max(0, round(most - done))
  if is_fit and job == 'ps' and not _REPLICAS.value:
    # Steps rolled back and repeated between two log lines are not visible.
    lost = max(lost, missing)
  is_known = not (is_fit and lost)
  return outcomes_lib.Outcome(
    kind,
    job,
    mode,
    completed=bool(counts) and all(c[2] >= _STEPS.value for c in counts),
    resume_secs=progress.resumed_after(times, began, within=0.3),
    pause_secs=resumed_at - paused_at,
    lost=lost,
    missing=missing if is_known else None,
    doubled=doubled if is_known else None,
    loss=max(
      (x for log in logs for (x,) in progress.numbers(log, 'loss')),
      default=None,
    ),
  )


def _wait_for_step(
  cluster: process_cluster.ProcessCluster, step: float
) -> None:
  cluster.wait_for_line(
    'chief', 0, 'at ', timeout_secs=timeouts.current().start_secs
  )
  deadline = deadlines.after(_TIMEOUT.value)
  while all(
    at[0] < step for at in progress.numbers(cluster.log('chief', 0), 'at')
  ):
    if deadlines.is_over(deadline):
      raise errors.DeadlineError(
        f'chief:0 has not reached step {step:.0f} within '
        f'{_TIMEOUT.value:g} seconds.'
      )
    time.sleep(timeouts.current().poll_secs)


def _wait_for_end(
  cluster: process_cluster.ProcessCluster, task: spec_lib.Task
) -> None:
  """Waits until a task logs that it is done, maybe after a restart."""
  cluster.wait_for_line(
    task.job, task.index, 'done', timeout_secs=_TIMEOUT.value
  )


def _trainers(
  cluster: process_cluster.ProcessCluster, mode: str
) -> list[spec_lib.Task]:
  jobs = ['chief', 'worker'] if mode.startswith('between') else ['chief']
  return [task for job in jobs for task in cluster.cluster.tasks(job)]


if __name__ == '__main__':
  app.run(main)
