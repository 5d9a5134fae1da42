"""Trains again and again while tasks are struck, and says what became of it.

    python -m tfps.testing.chaos.campaign --faults=kill,hang --runs=3 --seed=1

Each run starts a cluster of real processes, strikes one task at a moment that
the seed chooses, and waits for training to end. The table has a line for each
fault, job and mode. The fault `none` strikes nobody, for comparison; `fill`
strikes the chief, which writes the cuts, on a small disk that is filled.
"""

import collections
from collections.abc import Sequence
import concurrent.futures
import contextlib
import dataclasses
import json
import pathlib
import random
import shutil
import statistics
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
from tfps.testing.chaos import progress

_MODES = ['coordinator', 'fit', 'between_graph', 'between_graph_fit']
_JOBS = ['worker', 'ps', 'chief']

_FAULTS = flags.DEFINE_list('faults', ['kill', 'hang'], 'Which faults.')
_STRUCK = flags.DEFINE_list('jobs', _JOBS, 'Which jobs to strike.')
_IN_MODES = flags.DEFINE_list('modes', _MODES, 'How to train.')
_RUNS = flags.DEFINE_integer('runs', 3, 'Of each.', lower_bound=1)
_AT_ONCE = flags.DEFINE_integer(
  'at_once', 1, 'How many runs keep the machine busy together.', lower_bound=1
)
_SEED = flags.DEFINE_integer('seed', 1, 'Of the moments and tasks.')
_STEPS = flags.DEFINE_integer('steps', 1500, 'Of each run.')
_TIMEOUT = flags.DEFINE_float('timeout_secs', 180.0, 'For each run.')
_EVERY = flags.DEFINE_float('every_secs', 1.0, 'Between two cuts.')
_REPLICAS = flags.DEFINE_integer('replicas', 0, 'Of each variable.')
_REPLICATE_EVERY = flags.DEFINE_float(
  'replicate_every_secs',
  None,
  'Between two copies to replicas; by default, they get each update.',
)
_TAKE_OVER = flags.DEFINE_float(
  'take_over_secs', None, 'After which another ps serves a lost one.'
)
_FOR = flags.DEFINE_list(
  'for_secs', ['0.1', '1'], 'How long a fault lasts, at least and at most.'
)
_SPARES = flags.DEFINE_bool(
  'spares',
  True,
  'Whether tasks are forked with TensorFlow in place when they are started.',
)
_KEEP_LOGS = flags.DEFINE_string(
  'keep_logs', None, 'Where to leave what the tasks of a failed run have said.'
)
_OUTPUT = flags.DEFINE_string('output', None, 'Also write JSON there.')
_PAGE = flags.DEFINE_string(
  'page', None, 'Also put the table into this Markdown, between its marks.'
)
_TABLE = flags.DEFINE_string('table', 'campaign', "The marks' name.")

_NONE = 'none'
# Whom faults strike that do not strike every job.
_ONLY = {_NONE: [_NONE], 'fill': ['chief']}
_DISK_BYTES = 2**24
_PER_EXECUTION = 5  # steps
# With these in place programs start at once, as `tfps launch --preload` has it.
_PRELOAD = ('tensorflow', 'keras')
# By any other command than the default one, servers are not forked.
_SERVE = (sys.executable, '-u', '-m', 'tfps.server')
_STRIKE_AT = (0.1, 0.5)  # of all steps
_MARKS = '<!-- {}: begin -->', '<!-- {}: end -->'


@dataclasses.dataclass(frozen=True)
class Outcome:
  """What became of a run.

  Attributes:
    fault: its kind.
    job: whose task was struck.
    mode: how it trained.
    completed: whether all tasks ended in order, with all steps done.
    resume_secs: from the fault to the end of the next execution. Those that end
      within 0.3 seconds may have been under way, and do not count if a longer
      pause begins there.
    pause_secs: the longest time without an execution, from the fault on.
    lost: steps that were applied and then set back.
    missing: how much less than the steps was added to a variable, at most; None
      where it cannot be told.
    doubled: how much more than the steps was added to a variable, at most; None
      where it cannot be told.
    loss: at the end, the highest of all tasks'; None where there is none.
    detail: what went wrong, if anything.
  """

  fault: str
  job: str
  mode: str
  completed: bool
  resume_secs: float = 0.0
  pause_secs: float = 0.0
  lost: int = 0
  missing: int | None = 0
  doubled: int | None = 0
  loss: float | None = None
  detail: str = ''


def main(args: Sequence[str]) -> int:
  """The status: 0 if every run was completed."""
  if len(args) > 1:
    raise app.UsageError(f'{args[1]!r} is no flag. See --help.')
  seeds = random.Random(_SEED.value)
  cells = [
    (fault, job, mode, random.Random(seeds.getrandbits(64)))
    for _ in range(_RUNS.value)
    for fault in _FAULTS.value
    for job in _ONLY.get(fault, _STRUCK.value)
    for mode in _IN_MODES.value
  ]
  outcomes = []
  with concurrent.futures.ThreadPoolExecutor(_AT_ONCE.value) as pool:
    for outcome in pool.map(lambda cell: run(*cell), cells):
      outcomes.append(outcome)
      print(outcome, file=sys.stderr, flush=True)
  print(table(outcomes))
  if _OUTPUT.value:
    found = [dataclasses.asdict(outcome) for outcome in outcomes]
    pathlib.Path(_OUTPUT.value).write_text(json.dumps(found, indent=1))
  if _PAGE.value:
    page = pathlib.Path(_PAGE.value)
    page.write_text(
      with_table(page.read_text(), table(outcomes), name=_TABLE.value)
    )
  return 0 if all(outcome.completed for outcome in outcomes) else 1


def run(kind: str, job: str, mode: str, choices: random.Random) -> Outcome:
  """One run."""
  with contextlib.ExitStack() as stack:
    folder = stack.enter_context(
      tempfile.TemporaryDirectory(prefix='tfps-campaign-')
    )
    cuts = pathlib.Path(folder, 'cuts')
    if kind == 'fill':
      cuts = stack.enter_context(disks.small_disk(_DISK_BYTES))
    program = (
      *(sys.executable, '-m', 'tfps.testing.chaos.campaign_task'),
      *(f'--mode={mode}', f'--steps={_STEPS.value}', f'--directory={cuts}'),
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
      step = choices.uniform(*_STRIKE_AT) * _STEPS.value
      try:
        _wait_for_step(cluster, step)
        if kind == _NONE:
          outcome = _undisturbed(cluster, mode)
        else:
          fault = _choose(cluster, kind, job, choices, directory=cuts)
          outcome = _strike(cluster, fault, mode)
      except errors.Error as error:
        detail = errors.first_line(error)
        outcome = Outcome(kind, job, mode, completed=False, detail=detail)
    if _KEEP_LOGS.value and not outcome.completed:
      kept = pathlib.Path(
        _KEEP_LOGS.value, f'{kind}-{job}-{mode}-{time.time()}'
      )
      shutil.copytree(logs, kept)
    return outcome


def _commands(mode: str, program: Sequence[str]) -> dict[str, Sequence[str]]:
  """What the tasks of each job run."""
  commands: dict[str, Sequence[str]] = {}
  if not _SPARES.value:
    commands = {'ps': _SERVE, 'worker': _SERVE}
  if mode.startswith('between'):
    together = (*program, '--together')
    return {**commands, 'chief': together, 'worker': together}
  return {**commands, 'chief': program}


def table(outcomes: Sequence[Outcome]) -> str:
  """The outcomes in Markdown: a line for each fault, job and mode."""
  lines = [
    '| fault | task | mode | completed | seconds to resume '
    '| longest pause | lost | missing | doubled | final loss |',
    f'|{"---|" * 10}',
  ]
  groups = collections.defaultdict(list)
  for outcome in outcomes:
    groups[outcome.fault, outcome.job, outcome.mode].append(outcome)
  for (fault, job, mode), group in groups.items():
    good = [outcome for outcome in group if outcome.completed]
    cells = [fault, job, mode, f'{len(good)} of {len(group)}']
    if good:
      cells += [
        _say_secs([outcome.resume_secs for outcome in good]),
        _say_secs([outcome.pause_secs for outcome in good]),
        f'{max(outcome.lost for outcome in good)}',
        _say_most([outcome.missing for outcome in good]),
        _say_most([outcome.doubled for outcome in good]),
        _say_loss([o.loss for o in good if o.loss is not None]),
      ]
    else:
      cells += [''] * 6
    lines.append(f'| {" | ".join(cells)} |')
  return '\n'.join(lines)


def with_table(page: str, text: str, *, name: str) -> str:
  """A page with a table between its marks, instead of what was there.

  Raises:
    ValueError: it does not have the marks of that name.
  """
  begin, end = (mark.format(name) for mark in _MARKS)
  before, found, rest = page.partition(begin)
  _, also_found, after = rest.partition(end)
  if not (found and also_found):
    raise ValueError(f'The page lacks {begin!r} or, after it, {end!r}.')
  return f'{before}{begin}\n\n{text}\n\n{end}{after}'


def _if_given(flag: flags.FlagHolder[Any]) -> list[str]:
  return [] if flag.value is None else [f'--{flag.name}={flag.value}']


def _say_secs(secs: Sequence[float]) -> str:
  return f'{statistics.median(secs):.1f} ({min(secs):.1f}..{max(secs):.1f})'


def _say_most(counts: Sequence[int | None]) -> str:
  return str(max((c for c in counts if c is not None), default=''))


def _say_loss(losses: Sequence[float]) -> str:
  if not losses:
    return ''
  return f'{min(losses):.4f}..{max(losses):.4f}'


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


def _strike(
  cluster: process_cluster.ProcessCluster, fault: faults_lib.Fault, mode: str
) -> Outcome:
  trainers = _trainers(cluster, mode)
  with faults_lib.Faults(cluster, [fault]) as happening:
    for task in trainers:
      # A worker may be back too late to find the others.
      if task != fault.task or task.job == 'chief':
        _wait_for_end(cluster, task)
  events = happening.events
  outcome = _outcome(
    cluster, fault.kind, fault.task.job, mode, events[0].at if events else 0.0
  )
  return dataclasses.replace(
    outcome, completed=outcome.completed and bool(events)
  )


def _undisturbed(cluster: process_cluster.ProcessCluster, mode: str) -> Outcome:
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
) -> Outcome:
  """What the tasks that train have written tells."""
  logs = [cluster.log(t.job, t.index) for t in _trainers(cluster, mode)]
  counts = [c for log in logs for c in progress.numbers(log, 'count')]
  steps = [progress.numbers(log, 'at') for log in logs]
  times = [at for s in steps for _, at in s]
  lost = max(progress.set_back([step for step, _ in s]) for s in steps)
  # Whoever has begun last to count has counted what all others did.
  least, most, step, _ = max(counts, key=lambda c: c[3], default=[0.0] * 4)
  paused_at, went_on_at = progress.longest_gap(times, began)
  # Keras counts an execution once more when it is done again.
  is_fit = mode.endswith('fit')
  done = _PER_EXECUTION * len(times) if is_fit else step
  missing, doubled = max(0, round(done - least)), max(0, round(most - done))
  if is_fit and job == 'ps' and not _REPLICAS.value:
    # What was set back and done again between two executions cannot be seen.
    lost = max(lost, missing)
  is_known = not (is_fit and lost)
  return Outcome(
    kind,
    job,
    mode,
    completed=bool(counts) and all(c[2] >= _STEPS.value for c in counts),
    resume_secs=progress.resumed_after(times, began, within=0.3),
    pause_secs=went_on_at - paused_at,
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
        f'chief:0 is not at step {step:.0f} after {_TIMEOUT.value:g} seconds.'
      )
    time.sleep(timeouts.current().poll_secs)


def _wait_for_end(
  cluster: process_cluster.ProcessCluster, task: spec_lib.Task
) -> None:
  """Waits for a task's orderly end, which may come after a restart."""
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
