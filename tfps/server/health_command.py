"""Command `tfps health`, which asks this task's own server whether it answers.

It is made for probes, such as those of Kubernetes: it takes the task from the
environment of the program beside it, asks the server on this machine over
gRPC, and imports no TensorFlow. Status 0 says healthy; otherwise one line says
what is wrong. An enclosed program is asked by TLS, with the certificate that
the environment names.

A server that does not run yet, or not any more, is not ready. It is not frozen
either: with `--live`, only one that takes connections and does not answer is
unhealthy, because a task that has ended needs nobody to end it. Trainers
between graphs have no server at all.
"""

import argparse
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import os
import sys

from tfps._utils import option_types
from tfps.cluster import resolver
from tfps.cluster import spec as spec_lib
from tfps.cluster import validation
from tfps.security import config
from tfps.security import enclosure
from tfps.server import health

# A server listens on all of its machine's addresses, and this one needs no
# name service.
_OWN_HOST = '127.0.0.1'
# Stands for any task: its answer is that of another one.
_ANY = spec_lib.Task('ps', 0)


def main(argv: Sequence[str] | None = None) -> int:
  """Asks a server.

  Args:
    argv: the options; by default the command line's.

  Returns:
    0 if the server answers, or the task has none; otherwise 1.

  Raises:
    SystemExit: with status 2, after a message, for wrong options.
  """
  options = _parser().parse_args(argv)
  try:
    healthy, text = check(
      os.environ,
      address=options.address,
      live=options.live,
      timeout_secs=options.timeout_secs,
    )
  except ValueError as error:
    healthy, text = False, str(error)
  print(text, file=sys.stdout if healthy else sys.stderr)
  return 0 if healthy else 1


def check(
  env: Mapping[str, str],
  *,
  address: str | None = None,
  live: bool = False,
  timeout_secs: float,
) -> tuple[bool, str]:
  """Returns whether a server is healthy, and a line that says why.

  Args:
    env: the environment of the task, for `TF_CONFIG` or Slurm's variables.
    address: 'host:port' of a server of any task; None for the task's own.
    live: whether a server that does not run is healthy, too.
    timeout_secs: how long the answer may take.

  Raises:
    ValueError: the environment has no task, or is wrong.
  """
  task, host_port = (None, address) if address else _own(env)
  if not host_port:
    return True, f'{task} has no server to ask.'
  try:
    with _reached(task, host_port, env) as target:
      status = health.probe(task or _ANY, target, timeout_secs=timeout_secs)
  except ValueError as error:  # of credentials: the server may be well
    return live, str(error)
  if task is None and status.incarnation is not None:
    return True, f'The server at {host_port} is alive.'
  if live and status.state is health.State.DEAD:
    return True, f'{_subject(task)} at {host_port} does not run.'
  hung = status.state is health.State.HUNG
  asked = f' within {timeout_secs:g} seconds' if hung else ''
  text = f'{_subject(task)} at {host_port} {status.detail}{asked}.'
  return status.state is health.State.ALIVE, text


@contextlib.contextmanager
def _reached(
  task: spec_lib.Task | None, address: str, env: Mapping[str, str]
) -> Iterator[str]:
  """Yields the address at which this process reaches a server."""
  names = config.VARIABLES.values()
  if task is None or enclosure.is_within(env) or not any(map(env.get, names)):
    yield address
  else:
    security = config.Security.from_env(env)
    with enclosure.called_through({task: address}, security) as reachable:
      yield reachable[task]


def _subject(task: spec_lib.Task | None) -> str:
  return 'The server' if task is None else str(task)


def _own(env: Mapping[str, str]) -> tuple[spec_lib.Task, str]:
  """Returns this task, and the address of its server, which may be empty."""
  cluster = resolver.resolve_cluster(env)
  task = cluster.task
  assert task is not None  # as `resolve_cluster` has checked
  if task.job == 'evaluator':
    return task, ''
  if not _is_given(env):
    raise ValueError(
      'tfps health: neither TF_CONFIG nor TFPS_JOBS in a Slurm step names the '
      'task. Run it in the environment of the task, or give --address.'
    )
  if task not in cluster.tasks():
    return task, ''
  port = cluster.address(task).rpartition(':')[2]
  return task, f'{_OWN_HOST}:{port}'


def _is_given(env: Mapping[str, str]) -> bool:
  names = ('TF_CONFIG', resolver.JOBS_VARIABLE)
  return any(env.get(name, '').strip() for name in names)


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog='tfps health',
    description="Asks this task's own server whether it answers.",
    epilog='Status: 0 if it answers, or the task has no server, as an '
    'evaluator; 1 if it does not; 2 for a wrong option.',
    allow_abbrev=False,
  )
  parser.add_argument(
    '--address',
    type=validation.address_option,
    metavar='HOST:PORT',
    help="a server to ask, of any task that has no TLS (default: the task's "
    'own, which TF_CONFIG or TFPS_JOBS names)',
  )
  parser.add_argument(
    '--live',
    action='store_true',
    help='only a server that takes connections and does not answer, as a '
    'frozen one, is unhealthy; one that does not run is not',
  )
  parser.add_argument(
    '--timeout_secs',
    type=option_types.positive_seconds,
    default=5.0,
    metavar='SECS',
    help='how long the answer may take (default: 5)',
  )
  return parser


if __name__ == '__main__':
  sys.exit(main())
