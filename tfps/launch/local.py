"""Starts a program as all the tasks of a cluster on this machine.

`python -m tfps.launch --num_workers=2 --num_ps=2 train.py --steps=1000`

Each task is a process with `TF_CONFIG` in its environment. The launcher shows
their output, exits when they do, and names the task that failed first. It does
not import TensorFlow.
"""

import argparse
from collections.abc import Mapping
from collections.abc import Sequence
import functools
import os
import pathlib
import shlex
import sys
import time

from tfps import errors
from tfps._compat import messages
from tfps._utils import ports
from tfps.cluster import spec as spec_lib
from tfps.launch import forked_process
from tfps.launch import supervisor as supervisor_lib
from tfps.launch import task_output
from tfps.server import environment
from tfps.training import training_end

_EVALUATOR = 'evaluator'
_EPILOG = """\
Options precede the program; all that follows it are the program's arguments.
Status: 0 when all tasks exited 0; else that of the first task that failed, or
128 + n for signal n to the task or the launcher; 2 for a wrong option. That of
an evaluator counts when no other task failed.
"""


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the launcher.

  Args:
    argv: options, the program and its arguments; by default the command
      line's.

  Returns:
    The exit status: 0 when all tasks exited with 0, otherwise that of the
    first task that failed, or 128 + n for signal n.

  Raises:
    SystemExit: with status 2, after a message, for wrong options.
  """
  options, program = _parse(sys.argv[1:] if argv is None else argv)
  cluster = local_cluster(
    options.num_workers, options.num_ps, num_chiefs=options.num_chiefs
  )
  growth = os.environ.get(environment.GROWTH_VARIABLE, 'true')
  added = {
    'PYTHONUNBUFFERED': '1',
    # Here, too, for programs that use a GPU before they connect.
    environment.GROWTH_VARIABLE: growth,
    **dict(options.env),
  }
  if options.dry_run:
    for task in _tasks(options, cluster):
      print(by_hand(cluster.with_task(task), program, added))
    return 0
  return _supervise(options, cluster, program, added)


def local_cluster(
  num_workers: int, num_ps: int, *, num_chiefs: int
) -> spec_lib.Cluster:
  """Returns a cluster on free ports of this machine.

  Args:
    num_workers: number of workers.
    num_ps: number of ps.
    num_chiefs: 1, or 0 for between-graph programs whose chief is worker:0.
  """
  numbers = {'chief': num_chiefs, 'ps': num_ps, 'worker': num_workers}
  jobs = {
    job: [f'localhost:{ports.pick()}' for _ in range(number)]
    for job, number in numbers.items()
    if number
  }
  return spec_lib.Cluster(jobs, source='launch')


def by_hand(
  cluster: spec_lib.Cluster, program: Sequence[str], env: Mapping[str, str]
) -> str:
  """Returns a shell command that starts the cluster's task, below its name.

  Args:
    cluster: the cluster with the task to start.
    program: the program and its arguments.
    env: variables to set besides `TF_CONFIG`.
  """
  env = {**env, 'TF_CONFIG': cluster.tf_config()}
  settings = [f'{name}={value}' for name, value in env.items()]
  return f'# {cluster.task}\n{shlex.join(["env", *settings, *program])}'


def _tasks(
  options: argparse.Namespace, cluster: spec_lib.Cluster
) -> tuple[spec_lib.Task, ...]:
  """Returns the cluster's tasks and the evaluator, which is no part of it."""
  evaluators = range(options.num_evaluators)
  return *cluster.tasks(), *(spec_lib.Task(_EVALUATOR, i) for i in evaluators)


def _supervise(
  options: argparse.Namespace,
  cluster: spec_lib.Cluster,
  program: Sequence[str],
  env: Mapping[str, str],
) -> int:
  tasks = _tasks(options, cluster)
  output = task_output.TaskOutput(
    tasks,
    pathlib.Path(options.log_dir or _fresh_folder()),
    colour=task_output.wants_colour(sys.stdout, os.environ),
    is_shown=functools.partial(messages.is_shown, env={**os.environ, **env}),
  )
  end_file = output.folder.absolute() / 'training_end'
  end_file.unlink(missing_ok=True)  # of an earlier run in the same folder
  if options.num_evaluators:
    env = {**env, training_end.VARIABLE: str(end_file)}
  servers = ('ps', 'worker') if options.chief_ends_job else ('ps',)
  commands = [
    supervisor_lib.Command(
      task,
      tuple(program),
      {**os.environ, **env, 'TF_CONFIG': cluster.with_task(task).tf_config()},
      serves=task.job in servers,
      evaluates=task.job == _EVALUATOR,
      preload=options.preload,
      address=cluster.address(task)
      if options.silent_secs and task.job != _EVALUATOR
      else '',
    )
    for task in tasks
  ]
  names = ', '.join(map(str, tasks))
  output.say(f'Starting {names}. Their output is kept in {output.folder}.')
  supervisor = supervisor_lib.Supervisor(
    commands,
    output,
    grace_secs=options.grace_secs,
    max_restarts=options.max_restarts,
    silent_secs=options.silent_secs,
    evaluator_secs=options.evaluator_secs,
    end_file=end_file if options.num_evaluators else None,
  )
  try:
    return supervisor.run()
  except (ImportError, errors.DeadlineError) as error:
    output.say(f'--preload: {error}')
    return 1


def _fresh_folder() -> str:
  return time.strftime(f'runs/launch/%Y%m%d-%H%M%S-{os.getpid()}')


def _parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
  """Returns the options, and the command that runs the program."""
  parser = _parser()
  words = list(argv)
  # The program may have an option -m, too, but only after its name.
  end = words.index('-m') if '-m' in words else len(words)
  options = parser.parse_args(words[:end])
  if options.chief_ends_job and not options.num_chiefs:
    parser.error('--chief_ends_job needs --num_chiefs=1.')
  run = [*_without_dashes(options.program), *words[end:]]
  if run in ([], ['-m']):
    parser.error('no program. Give prog.py or -m module after the options.')
  if run[0] != '-m' and not os.path.exists(run[0]):
    parser.error(f'the program {run[0]!r} does not exist in {os.getcwd()}.')
  num_words = 2 if run[0] == '-m' else 1
  args = _without_dashes(run[num_words:])
  return options, [sys.executable, *run[:num_words], *args]


def _without_dashes(words: list[str]) -> list[str]:
  return words[1:] if words[:1] == ['--'] else words


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog='tfps launch',
    usage='%(prog)s [options] (prog.py | -m module) [--] [args ...]',
    description=__doc__.splitlines()[0],
    epilog=_EPILOG,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,
  )
  _add_cluster_options(parser)
  _add_run_options(parser)
  parser.add_argument(
    'program',
    nargs=argparse.REMAINDER,
    help='the program, or -m and a module, and its arguments',
  )
  return parser


def _add_cluster_options(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('--num_workers', type=_positive, default=1, metavar='N')
  parser.add_argument('--num_ps', type=_positive, default=1, metavar='N')
  parser.add_argument(
    '--num_chiefs',
    type=int,
    choices=(0, 1),
    default=1,
    help='0: worker:0 is the chief, which only between-graph programs allow',
  )
  parser.add_argument(
    '--num_evaluators',
    type=int,
    choices=(0, 1),
    default=0,
    help='1: evaluator:0, too, which is no part of the cluster; its program '
    'calls tfps.evaluate_checkpoints',
  )
  parser.add_argument(
    '--env',
    type=_setting,
    action='append',
    default=[],
    metavar='NAME=VALUE',
    help="added to the tasks' environment; may be repeated",
  )


def _add_run_options(parser: argparse.ArgumentParser) -> None:
  parser.add_argument(
    '--log_dir',
    help="where each task's output goes, as ps-0.log; by default a new "
    'folder in runs/launch',
  )
  parser.add_argument(
    '--preload',
    type=_modules,
    default=(),
    metavar='MODULES',
    help='such as tensorflow,keras: imported once; tasks are forked from that '
    'process, so that they start and restart at once. Environment variables '
    'that the program itself sets come too late for these modules',
  )
  parser.add_argument(
    '--dry_run',
    action='store_true',
    help='print the commands for a shell and start nothing',
  )
  parser.add_argument(
    '--max_restarts',
    type=_natural,
    default=0,
    metavar='N',
    help='how many tasks, in all, are started again after a status of 128 or '
    'more, after which a retry may help',
  )
  parser.add_argument(
    '--silent_secs',
    type=_seconds,
    default=10.0,
    metavar='SECS',
    help='seconds after which a task whose server no longer answers, such as '
    'a frozen one, is killed; 0 for never (default: 10)',
  )
  parser.add_argument(
    '--grace_secs',
    type=_seconds,
    default=10.0,
    metavar='SECS',
    help='seconds to exit: for the ps once all others are done, and for all '
    'between SIGTERM and SIGKILL (default: 10)',
  )
  parser.add_argument(
    '--evaluator_secs',
    type=_seconds,
    default=600.0,
    metavar='SECS',
    help='seconds for the evaluator to exit once training is done '
    '(default: 600)',
  )
  parser.add_argument(
    '--chief_ends_job',
    action='store_true',
    help='stop workers, too, once the chief is done; for workers that join() '
    'a server forever',
  )


def _natural(text: str) -> int:
  if not text.isdecimal():
    raise argparse.ArgumentTypeError(f'{text!r} is not 0, 1, 2, ...')
  return int(text)


def _positive(text: str) -> int:
  if not text.isdecimal() or not int(text):
    raise argparse.ArgumentTypeError(f'{text!r} is not 1, 2, 3, ...')
  return int(text)


def _modules(text: str) -> tuple[str, ...]:
  try:
    return forked_process.check_preload(list(filter(None, text.split(','))))
  except ValueError as error:
    raise argparse.ArgumentTypeError(str(error)) from error


def _seconds(text: str) -> float:
  try:
    secs = float(text)
  except ValueError:
    secs = -1.0
  if not 0 <= secs < float('inf'):
    raise argparse.ArgumentTypeError(f'{text!r} is no number of seconds')
  return secs


def _setting(text: str) -> tuple[str, str]:
  name, equals, value = text.partition('=')
  if not name or not equals:
    raise argparse.ArgumentTypeError(f'{text!r} is not NAME=VALUE')
  if name == 'TF_CONFIG':
    raise argparse.ArgumentTypeError('TF_CONFIG is set by the launcher')
  return name, value
