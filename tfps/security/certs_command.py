"""Command `tfps certs`, which makes the certificates of a job's tasks.

`tfps certs --directory=certs chief:0 ps:0 ps:1 worker:0 worker:1`
"""

import argparse
from collections.abc import Sequence
import os
import pathlib
import sys

from tfps._utils import option_types
from tfps.cluster import resolver
from tfps.cluster import spec as spec_lib
from tfps.cluster import validation
from tfps.security import certificates


def main(argv: Sequence[str] | None = None) -> int:
  """Makes certificates.

  Args:
    argv: options and tasks; by default the command line's.

  Returns:
    0, or 1 after a message if they cannot be made.

  Raises:
    SystemExit: with status 2, after a message, for wrong options.
  """
  options = _parser().parse_args(argv)
  try:
    tasks = options.tasks or resolver.resolve_cluster(os.environ).tasks()
    if not tasks:
      raise ValueError(
        'no tasks. Name them, as in chief:0 ps:0 worker:0, or set TF_CONFIG.'
      )
    certificates.make(options.directory, tasks, valid_hours=options.valid_hours)
  except (ImportError, OSError, ValueError) as error:
    print(f'tfps certs: {error}', file=sys.stderr)
    return 1
  names = ', '.join(map(str, tasks))
  print(
    f'{options.directory} has certificates of {names}, valid for '
    f'{options.valid_hours:g} hours. {certificates.CA} belongs on all hosts, a '
    "task's two files on its own, and ca.key on none."
  )
  return 0


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog='tfps certs',
    description='Makes a CA for a job, and a certificate for each of its '
    'tasks. Run it again to renew them, or for further tasks.',
    allow_abbrev=False,
  )
  parser.add_argument(
    '--directory',
    type=pathlib.Path,
    required=True,
    help='where certificates and keys are written',
  )
  parser.add_argument(
    '--valid_hours',
    type=option_types.positive,
    default=certificates.DEFAULT_HOURS,
    metavar='HOURS',
    help=f'how long they are valid (default: {certificates.DEFAULT_HOURS:g})',
  )
  parser.add_argument(
    'tasks',
    nargs='*',
    type=_task,
    metavar='TASK',
    help='such as ps:0 (default: all of TF_CONFIG or Slurm)',
  )
  return parser


def _task(text: str) -> spec_lib.Task:
  try:
    task = spec_lib.Task.parse(text)
    validation.job_of_task(task.job, repr(text))
  except ValueError as error:
    raise argparse.ArgumentTypeError(str(error)) from error
  return task


if __name__ == '__main__':
  sys.exit(main())
