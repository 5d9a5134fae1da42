"""Command `tfps launch`, which starts a program as all the tasks of a cluster.

`tfps launch --num_workers=2 --num_ps=2 train.py --steps=1000`

Each task is a process with the cluster and its place in it in its environment.
By default all run on this machine; `--engine` names where else. The launcher
shows the tasks' output, exits when they do, and names the task that failed
first. It does not import TensorFlow.
"""

import argparse
from collections.abc import Iterator
from collections.abc import Sequence
import os
import pathlib
import shutil
import sys

from tfps._utils import option_types
from tfps.launch import forked_process
from tfps.launch import hosts
from tfps.launch import job as job_lib
from tfps.launch import kubernetes
from tfps.launch import local
from tfps.launch import ray
from tfps.launch import secure
from tfps.launch import slurm

_ENGINES = {
  'local': local.start,
  'hosts': hosts.start,
  'kubernetes': kubernetes.start,
  'ray': ray.start,
  'slurm': slurm.start,
}
_WITH_OPTIONS = {
  'hosts': hosts.add_options,
  'kubernetes': kubernetes.add_options,
  'ray': ray.add_options,
  'slurm': slurm.add_options,
}
_WITH_PORTS = ('local', 'hosts')  # engines that know each task's machine
_ELSEWHERE = ('kubernetes',)  # engines whose tasks have files of their own
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
  parser = _parser()
  options, program = _parse(parser, sys.argv[1:] if argv is None else argv)
  try:
    secure.check(options)
    with secure.secured(_job(options, program), options) as job:
      return _ENGINES[options.engine](job, options)
  except ValueError as error:
    parser.error(str(error))


def _parse(
  parser: argparse.ArgumentParser, argv: Sequence[str]
) -> tuple[argparse.Namespace, tuple[str, ...]]:
  """Returns the options, and the program with its arguments."""
  words = list(argv)
  # The program may have an option -m, too, but only after its name.
  end = words.index('-m') if '-m' in words else len(words)
  options = parser.parse_args(words[:end])
  if options.engine is None:
    options.engine = _engine(options)
  for option, engine in _options_of_others(options):
    parser.error(
      f'--{option} is for --engine={engine}, and the engine is '
      f'{options.engine}. Leave it out.'
    )
  if options.metrics_port and options.engine not in _WITH_PORTS:
    parser.error(
      f'--metrics_port gives tasks of one machine different ports, and the '
      f'engine is {options.engine}. Set the port of all tasks: '
      '--env=TFPS_METRICS_PORT=0.0.0.0:9400'
    )
  if options.dashboard_port and options.engine not in _WITH_PORTS:
    parser.error(
      f'--dashboard_port gives the chief alone a port, and the engine is '
      f'{options.engine}. Set it for all tasks, of which the chief uses it: '
      f'--env=TFPS_DASHBOARD_PORT={options.dashboard_port}'
    )
  if options.chief_ends_job and not options.num_chiefs:
    parser.error('--chief_ends_job needs --num_chiefs=1.')
  run = [*_without_dashes(options.program), *words[end:]]
  if run in ([], ['-m']):
    parser.error('no program. Give prog.py or -m module after the options.')
  is_here = run[0] != '-m' and options.engine not in _ELSEWHERE
  if is_here and not os.path.exists(run[0]):
    hint = ''
    if shutil.which(run[0]):
      hint = (
        f' Tasks are programs of this Python, {sys.executable}: leave out '
        f'{run[0]}, and give prog.py or -m module.'
      )
    parser.error(
      f'the program {run[0]!r} does not exist in {os.getcwd()}.{hint}'
    )
  num_words = 2 if run[0] == '-m' else 1
  return options, (*run[:num_words], *_without_dashes(run[num_words:]))


def _engine(options: argparse.Namespace) -> str:
  """Returns the engine that the options stand for."""
  if options.hosts or options.hostfile:
    return 'hosts'
  return 'kubernetes' if options.image else 'local'


def _options_of_others(
  options: argparse.Namespace,
) -> Iterator[tuple[str, str]]:
  """Yields options that were given, and the other engines that have them."""
  for engine, add_options in _WITH_OPTIONS.items():
    own = argparse.ArgumentParser(add_help=False)
    add_options(own)
    for name, default in vars(own.parse_args([])).items():
      if engine != options.engine and getattr(options, name) != default:
        yield name, engine


def _job(options: argparse.Namespace, program: tuple[str, ...]) -> job_lib.Job:
  return job_lib.Job(
    program,
    num_workers=options.num_workers,
    num_ps=options.num_ps,
    num_chiefs=options.num_chiefs,
    num_evaluators=options.num_evaluators,
    env=dict(options.env),
    gpus_per_worker=options.gpus_per_worker,
    max_restarts=options.max_restarts,
    grace_secs=options.grace_secs,
    log_dir=pathlib.Path(options.log_dir) if options.log_dir else None,
    metrics_port=options.metrics_port,
    dashboard_port=options.dashboard_port,
  )


def _without_dashes(words: list[str]) -> list[str]:
  return words[1:] if words[:1] == ['--'] else words


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog='tfps launch',
    usage='%(prog)s [options] (prog.py | -m module) [--] [args ...]',
    description='Starts a program as all the tasks of a cluster.',
    epilog=_EPILOG,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,
  )
  parser.add_argument(
    '--engine',
    choices=_ENGINES,
    help='what starts the tasks (default: local, this machine)',
  )
  _add_cluster_options(parser)
  _add_run_options(parser)
  secure.add_options(parser)
  for add_options in _WITH_OPTIONS.values():
    add_options(parser)
  parser.add_argument(
    'program',
    nargs=argparse.REMAINDER,
    help='the program, or -m and a module, and its arguments',
  )
  return parser


def _add_cluster_options(parser: argparse.ArgumentParser) -> None:
  parser.add_argument(
    '--num_workers', type=option_types.positive, default=1, metavar='N'
  )
  parser.add_argument(
    '--num_ps', type=option_types.natural, default=1, metavar='N'
  )
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
  parser.add_argument(
    '--metrics_port',
    metavar='[HOST:]PORT',
    help="where Prometheus finds the first task's metrics; each further task "
    'has the next port (default: none; HOST: 127.0.0.1)',
  )
  parser.add_argument(
    '--dashboard_port',
    metavar='[HOST:]PORT',
    help='where the chief serves a web page of the job (default: none; HOST: '
    '127.0.0.1, and another one only with --secure)',
  )
  parser.add_argument(
    '--gpus_per_worker',
    type=option_types.natural,
    metavar='N',
    help='GPUs that each worker sees; the other tasks see none (default: each '
    'task sees all GPUs of its machine)',
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
    type=option_types.natural,
    default=0,
    metavar='N',
    help='how many tasks, in all, are started again after a status of 128 or '
    'more, after which a retry may help',
  )
  parser.add_argument(
    '--silent_secs',
    type=option_types.seconds,
    default=10.0,
    metavar='SECS',
    help='seconds after which a task whose server no longer answers, such as '
    'a frozen one, is killed; 0 for never (default: 10)',
  )
  parser.add_argument(
    '--grace_secs',
    type=option_types.seconds,
    default=10.0,
    metavar='SECS',
    help='seconds to exit: for the ps once all others are done, and for all '
    'between SIGTERM and SIGKILL (default: 10)',
  )
  parser.add_argument(
    '--evaluator_secs',
    type=option_types.seconds,
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


def _modules(text: str) -> tuple[str, ...]:
  try:
    return forked_process.check_preload(list(filter(None, text.split(','))))
  except ValueError as error:
    raise argparse.ArgumentTypeError(str(error)) from error


def _setting(text: str) -> tuple[str, str]:
  name, equals, value = text.partition('=')
  if not name or not equals:
    raise argparse.ArgumentTypeError(f'{text!r} is not NAME=VALUE')
  if name == 'TF_CONFIG':
    raise argparse.ArgumentTypeError('TF_CONFIG is set by the launcher')
  return name, value
