"""Command `tfps dump`, which says what all tasks of a running job do.

It asks each task over the control plane and prints what its threads do and wait
for, since when, and their Python stacks.
"""

import argparse
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import json
import os
import sys

from tfps._compat import lazy_keras
from tfps._utils import option_types
from tfps.cluster import resolver
from tfps.cluster import spec as spec_lib
from tfps.cluster import validation
from tfps.server import health


def main(argv: Sequence[str] | None = None) -> int:
  """Prints a dump.

  Args:
    argv: the options; by default the command line's.

  Returns:
    0 if all tasks have answered, otherwise 1.

  Raises:
    SystemExit: with status 2, after a message, for wrong options.
  """
  options = _parser().parse_args(argv)
  try:
    known = known_tasks(options.address, os.environ)
  except ValueError as error:
    print(f'tfps dump: {error}', file=sys.stderr)
    return 1
  # Imported late, as TensorFlow is: wrong options are named at once.
  lazy_keras.import_tensorflow()
  from tfps.server import dumps
  from tfps.server import observation

  observed, _ = observation.observe_job(
    known, has_stacks=True, timeout_secs=options.timeout_secs
  )
  if options.json:
    facts = {
      str(task): found if isinstance(found, str) else dataclasses.asdict(found)
      for task, found in observed.items()
    }
    print(json.dumps(facts))
  else:
    print(dumps.text(observed))
  return int(any(isinstance(found, str) for found in observed.values()))


def known_tasks(
  addresses: Sequence[str], env: Mapping[str, str]
) -> dict[spec_lib.Task, str]:
  """Returns tasks of a job by which the others can be found.

  Args:
    addresses: 'host:port' of servers of some tasks; if there are none, the
      cluster of the environment is used.
    env: the environment, for `TF_CONFIG` or Slurm's variables.

  Raises:
    ValueError: a server does not answer, or the environment has no cluster.
  """
  if not addresses:
    cluster = resolver.resolve_cluster(env)
    if not cluster.jobs:
      raise ValueError(
        'no job: give --address=HOST:PORT of a ps or worker, which says '
        '"is ready at HOST:PORT" as it starts, or set TF_CONFIG.'
      )
    return {task: cluster.address(task) for task in cluster.tasks()}
  return {_task_at(address): address for address in addresses}


def add_job_options(parser: argparse.ArgumentParser) -> None:
  """Adds the options that say which job is asked, and how long it may take."""
  parser.add_argument(
    '--address',
    type=validation.address_option,
    action='append',
    default=[],
    metavar='HOST:PORT',
    help='of a ps or worker that serves, which knows the other tasks; may be '
    'repeated (default: those of TF_CONFIG or Slurm)',
  )
  parser.add_argument(
    '--timeout_secs',
    type=option_types.positive_seconds,
    default=5.0,
    metavar='SECS',
    help='how long the answer of a task may take (default: 5)',
  )


def _task_at(address: str) -> spec_lib.Task:
  status = health.probe(spec_lib.Task('ps', 0), address)
  if status.found is None:
    raise ValueError(f'the server at {address} {status.detail}.')
  return status.found


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog='tfps dump',
    description='Says what all tasks of a running job do and wait for, with '
    'the Python stacks of their threads.',
    epilog='Status: 0 if all tasks have answered; 1 if not; 2 for a wrong '
    'option.',
    allow_abbrev=False,
  )
  add_job_options(parser)
  parser.add_argument(
    '--json', action='store_true', help='print JSON, with all metrics, too'
  )
  return parser


if __name__ == '__main__':
  sys.exit(main())
