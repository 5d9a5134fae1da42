"""Command `tfps enclose`, which runs a program that only mutual TLS reaches.

`tfps enclose --ca=ca.pem --cert=ps-0.pem --key=ps-0.key -- python train.py`

The task is that of `TF_CONFIG` or a Slurm step. A task without a server, such
as an evaluator, reaches the others and is reached by nobody. So do commands
that observe a job, in the environment of any task:
`tfps enclose --observer -- tfps top`.
"""

import argparse
from collections.abc import Sequence
import os
import sys

from tfps.cluster import resolver
from tfps.cluster import spec as spec_lib
from tfps.security import config
from tfps.security import doors
from tfps.security import enclosure

_OBSERVER = spec_lib.Task('evaluator', 0)  # a task without a server


def main(argv: Sequence[str] | None = None) -> int:
  """Runs a program in an enclosure.

  Args:
    argv: options, `--` and the command; by default the command line's.

  Returns:
    The program's exit status; 1 after a message if it cannot be enclosed.

  Raises:
    SystemExit: with status 2, after a message, for wrong options.
  """
  parser = _parser()
  options = parser.parse_args(argv)
  command = options.command
  command = command[1:] if command[:1] == ['--'] else command
  if not command:
    parser.error('no command. Give it after --.')
  try:
    cluster = resolver.resolve_cluster(os.environ)
    if not cluster.jobs:
      raise ValueError('there is no cluster. Set TF_CONFIG.')
    env = dict(os.environ)
    if options.observer:
      cluster = cluster.with_task(_OBSERVER)
      env = {n: v for n, v in env.items() if n not in doors.PORTS.values()}
      env['TF_CONFIG'] = cluster.tf_config()
    security = config.Security.from_env(env, vars(options))
    return enclosure.run(command, cluster, security, env, options.form)
  except ValueError as error:
    print(f'tfps enclose: {error}', file=sys.stderr)
    return 1


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog='tfps enclose',
    usage='%(prog)s [options] -- command [args ...]',
    description='Runs a program that reaches the tasks of its cluster, and '
    'is reached, by mutual TLS only.',
    allow_abbrev=False,
  )
  for name, what in (
    ('ca', "certificate of the job's CA"),
    ('cert', "the task's certificate"),
    ('key', 'its key'),
  ):
    parser.add_argument(
      f'--{name}',
      metavar='FILE',
      help=f'{what} (default: {config.VARIABLES[name]} of the environment)',
    )
  parser.add_argument(
    '--form',
    default='',
    metavar='|'.join(enclosure.FORMS),
    help='how to cut it off (default: '
    f'{enclosure.FORM_VARIABLE} of the environment, else the first of these '
    'that this machine allows)',
  )
  parser.add_argument(
    '--observer',
    action='store_true',
    help='for a command that observes the job, such as tfps top: it serves '
    'nothing, whatever task the environment names',
  )
  parser.add_argument(
    'command', nargs=argparse.REMAINDER, help=argparse.SUPPRESS
  )
  return parser


if __name__ == '__main__':
  sys.exit(main())
