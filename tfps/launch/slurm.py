"""Submits a job to Slurm, whose tasks are those of one step.

`tfps launch --engine=slurm --num_workers=2 --num_ps=2 train.py`

The batch script starts `tfps.launch.task` as every task, which starts the
program again within the allocation. `tfps.cluster.slurm` reads the cluster from
the variables of the step. If workers get what the others do not, such as GPUs,
the job is a heterogeneous one with two components, and still one step.
"""

import argparse
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import math
import pathlib
import re
import shlex
import string
import subprocess
import sys

from tfps._utils import timeouts
from tfps.cluster import resolver
from tfps.launch import job as job_lib

_TEMPLATE = pathlib.Path(__file__).parent / 'templates' / 'slurm' / 'job.sbatch'
_VISIBLE = 'CUDA_VISIBLE_DEVICES'
_NO_GPUS = '-1'
# Options of sbatch that the script has itself.
_OURS = re.compile('(--ntasks|--distribution|--wrap|--parsable)(=.*)?|-[nm].*')
# Of nodes that are there, but down, drained or taken.
_TEMPORARY = re.compile('Required node not available|Requested nodes are busy')
_REQUEUE = """
# Told to end before it was done, by preemption or near the time limit: it goes
# on from its last snapshot once Slurm starts it again.
state=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T)
if [[ $status == 143 && $state == RUNNING* ]]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
"""


class _Template(string.Template):
  delimiter = '@'  # that of the shell is in the script


@dataclasses.dataclass(frozen=True)
class Request:
  """A request to Slurm, besides the tasks.

  Attributes:
    sbatch: options of sbatch, for all tasks.
    sbatch_ps: more of them, for all tasks but the workers.
    sbatch_workers: more of them, for the workers.
    requeue: whether a preempted job is to be started again.
    silent_secs: after how many seconds a task that gives no answer is killed.

  Raises:
    ValueError: an option is none of sbatch, or says what the job says.
  """

  sbatch: tuple[str, ...] = ()
  sbatch_ps: tuple[str, ...] = ()
  sbatch_workers: tuple[str, ...] = ()
  requeue: bool = False
  silent_secs: float = 10.0

  def __post_init__(self) -> None:
    for name in ('sbatch', 'sbatch_ps', 'sbatch_workers'):
      for option in getattr(self, name):
        if not re.fullmatch(r'--?[a-zA-Z][^\n]*', option):
          raise ValueError(
            f'--{name}={option}: this is no option of sbatch. Write it as in '
            f'--{name}=--partition=debug.'
          )
        if _OURS.fullmatch(option):
          raise ValueError(
            f'--{name}={option}: the script says this itself. How many tasks '
            'there are follows from --num_ps and --num_workers.'
          )


def add_options(parser: argparse.ArgumentParser) -> None:
  """Adds this engine's options."""
  group = parser.add_argument_group('slurm')
  for name, whose in (
    ('sbatch', 'all tasks'),
    ('sbatch_ps', 'the ps and the chief'),
    ('sbatch_workers', 'the workers'),
  ):
    group.add_argument(
      f'--{name}',
      action='append',
      default=[],
      metavar='OPTION',
      help=f'an option of sbatch for {whose}, such as --{name}=--partition=p; '
      'may be repeated',
    )
  group.add_argument(
    '--requeue',
    action='store_true',
    help='a job that is preempted, or near its time limit, is queued again and '
    'goes on from its last snapshot',
  )


def start(job: job_lib.Job, options: argparse.Namespace) -> int:
  """Submits a job, and returns at once.

  Args:
    job: the job.
    options: the launcher's, see `command`.

  Returns:
    0, once Slurm has the job.

  Raises:
    ValueError: an option is wrong, sbatch is missing, or it refuses the job.
  """
  for name in ('preload', 'chief_ends_job'):
    if getattr(options, name):
      raise ValueError(f'--{name} is not for --engine=slurm; leave it out.')
  request = Request(
    tuple(options.sbatch),
    tuple(options.sbatch_ps),
    tuple(options.sbatch_workers),
    requeue=options.requeue,
    silent_secs=options.silent_secs,
  )
  script = render(job, request)
  if options.dry_run:
    print(script, end='')
    return 0
  job_id = _submit(script, _tasks(job))
  logs = job.log_dir or f'logs/{job_id}'
  print(f'Submitted job {job_id}. Its output will be in slurm-{job_id}.out,')
  print(f"each task's in {logs}, as in {logs}/ps-0.log.")
  return 0


def render(
  job: job_lib.Job, request: Request, *, python: str = sys.executable
) -> str:
  """Returns the batch script of a job.

  Args:
    job: the job.
    request: what Slurm is asked for.
    python: the interpreter.

  Raises:
    ValueError: a name in the job's environment is none for a shell.
  """
  sizes = _sizes(job)
  num_workers = sizes['worker']
  num_others = sum(sizes.values()) - num_workers
  is_split = _is_split(job, request)
  components = [num_others, num_workers] if is_split else [sum(sizes.values())]
  logs = shlex.quote(str(job.log_dir)) if job.log_dir else 'logs/$SLURM_JOB_ID'
  return _Template(_TEMPLATE.read_text()).substitute(
    program=_program(job),
    tasks=_tasks(job),
    directives='\n'.join(_directives(job, request, components)),
    logs=logs,
    settings='\n'.join(_settings(job, sizes)),
    python=shlex.quote(python),
    max_restarts=job.max_restarts,
    grace_secs=f'{job.grace_secs:g}',
    silent_secs=f'{request.silent_secs:g}',
    secured=''.join(f' {shlex.quote(o)}' for o in job.secure_options()),
    command=shlex.join(job.command(python)),
    num_ports=max(components),
    step=_step(job, is_split=is_split),
    requeue=_REQUEUE * request.requeue,
  )


def _sizes(job: job_lib.Job) -> dict[str, int]:
  """Returns the numbers of tasks, in the order of their process ids."""
  sizes = {**job.sizes(), job_lib.EVALUATOR: job.num_evaluators}
  sizes['worker'] = sizes.pop('worker')  # last, as the second component
  return {name: number for name, number in sizes.items() if number}


def _is_split(job: job_lib.Job, request: Request) -> bool:
  """Returns whether the workers are a component of their own."""
  return bool(
    job.gpus_per_worker or request.sbatch_ps or request.sbatch_workers
  )


def _directives(
  job: job_lib.Job, request: Request, components: Sequence[int]
) -> list[str]:
  """Returns the lines that sbatch reads."""
  common = list(request.sbatch)
  if request.requeue:
    secs = math.ceil(job.grace_secs + timeouts.current().engine_end_secs)
    common += ['--requeue', f'--signal=TERM@{secs}']
  own: list[Sequence[str]] = [()]
  if len(components) > 1:
    gpus = job.gpus_per_worker
    gpu_options = [f'--gpus-per-task={gpus}'] if gpus else []
    own = [request.sbatch_ps, [*gpu_options, *request.sbatch_workers]]
  name = pathlib.PurePath(_program(job)).name.removesuffix('.py')
  lines = [f'--job-name={name}', '--open-mode=append']
  for i, number in enumerate(components):
    lines += ['hetjob'] * bool(i)
    lines += [f'--ntasks={number}', *common, *own[i]]
  return [f'#SBATCH {line}' for line in lines]


def _tasks(job: job_lib.Job) -> str:
  """Returns the numbers of tasks in words."""
  return ', '.join(
    f'{number} {name}{"s" * (name != "ps" and number > 1)}'
    for name, number in _sizes(job).items()
  )


def _program(job: job_lib.Job) -> str:
  """Returns the file or module that the tasks run."""
  return job.program[1 if job.program[0] == '-m' else 0]


def _settings(job: job_lib.Job, sizes: Mapping[str, int]) -> list[str]:
  """Returns the lines that set the environment of all tasks."""
  jobs = ','.join(f'{name}:{number}' for name, number in sizes.items())
  env = {resolver.JOBS_VARIABLE: jobs, **job.added_env()}
  if job.gpus_per_worker == 0:
    env[_VISIBLE] = _NO_GPUS
  for name in env:
    if not re.fullmatch(r'[A-Za-z_]\w*', name, re.ASCII):
      raise ValueError(f'--env={name}=...: a shell has no such name.')
  return [f'export {name}={shlex.quote(value)}' for name, value in env.items()]


def _step(job: job_lib.Job, *, is_split: bool) -> str:
  """Returns the command that runs all tasks to their end."""
  start = 'srun --kill-on-bad-exit=1'
  if not is_split:
    return f'{start} {_component("")} \\\n  "${{task[@]}}"'
  hidden = f'env {_VISIBLE}={_NO_GPUS} ' if job.gpus_per_worker else ''
  return (
    f'{start} --het-group=0 {_component("_HET_GROUP_0")} \\\n'
    f'  {hidden}"${{task[@]}}" : \\\n'
    f'  --het-group=1 {_component("_HET_GROUP_1")} \\\n'
    f'  "${{task[@]}}"'
  )


def _component(group: str) -> str:
  """Returns the options of srun for a component, by its variables' ends."""
  cpus = f'SLURM_CPUS_PER_TASK{group}'  # which srun does not heed by itself
  return (
    '--distribution=block "${ports[@]}" \\\n'
    f'  ${{{cpus}:+"--cpus-per-task=${cpus}"}}'
  )


def _submit(script: str, tasks: str) -> str:
  """Submits a script, and returns the job's id.

  Raises:
    ValueError: sbatch is missing or refuses the script, or there are no nodes
      for its tasks.
  """
  # By itself it queues a job that no nodes of the cluster can ever run.
  tried = _sbatch('--test-only', script)
  if not tried.returncode or _TEMPORARY.search(tried.stderr):
    tried = _sbatch('--parsable', script)
  if tried.returncode:
    raise ValueError(
      f'sbatch refuses the job of {tasks}: {tried.stderr.strip()}'
    )
  return tried.stdout.strip().partition(';')[0]


def _sbatch(option: str, script: str) -> subprocess.CompletedProcess[str]:
  try:
    return subprocess.run(
      ['sbatch', option],
      input=script,
      capture_output=True,
      text=True,
      timeout=timeouts.current().command_secs,
    )
  except FileNotFoundError as error:
    raise ValueError(
      'sbatch is not in PATH. Run this on a machine with Slurm, such as its '
      'login node, or print the script with --dry_run.'
    ) from error
  except subprocess.TimeoutExpired as error:
    raise ValueError(
      f'sbatch gave no answer within {error.timeout:g} seconds. Ask slurmctld '
      'with: scontrol ping.'
    ) from error
