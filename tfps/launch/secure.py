"""Mutual TLS between the tasks of a launched job: `tfps launch --secure`.

Each task then runs in an enclosure, with its own certificate. These are made
for the job and gone with it, or are those of a folder.
"""

import argparse
from collections.abc import Iterator
import contextlib
import dataclasses
import pathlib
import shlex
import tempfile

from tfps.cluster import spec as spec_lib
from tfps.launch import job as job_lib
from tfps.security import certificates

_ENGINES = ('local', 'hosts', 'slurm', 'ray', 'kubernetes')
# The key of their CA is never stored, and they are deleted when the job ends.
_VALID_HOURS = 24 * 365


def add_options(parser: argparse.ArgumentParser) -> None:
  """Adds the options."""
  parser.add_argument(
    '--secure',
    action='store_true',
    help='mutual TLS between all tasks, with certificates for this job; needs '
    'haproxy and tfps[secure]',
  )
  parser.add_argument(
    '--secure_directory',
    type=pathlib.Path,
    metavar='DIR',
    help='the same with the certificates that `tfps certs` has made there, at '
    'the same path on all hosts, or in all pods',
  )


def check(options: argparse.Namespace) -> None:
  """Checks that the other options allow what is asked for.

  Args:
    options: the launcher's.

  Raises:
    ValueError: one does not.
  """
  if not _is_secure(options):
    return
  if options.engine not in _ENGINES:
    raise ValueError(
      f'--secure is for --engine={", ".join(_ENGINES)}, and the engine is '
      f'{options.engine}. Leave it out, or have the program of each task run '
      'by `tfps enclose`, see docs/security.md.'
    )
  if options.preload:
    raise ValueError(
      '--preload forks tasks from a process outside of their enclosures. '
      'Leave it out with --secure.'
    )
  if options.secure_directory is None and (
    options.engine != 'local' or options.dry_run
  ):
    what = '--dry_run' if options.dry_run else f'--engine={options.engine}'
    raise ValueError(
      f'--secure with {what} needs --secure_directory=DIR, with the '
      'certificates that `tfps certs` has made.'
    )


@contextlib.contextmanager
def secured(
  job: job_lib.Job, options: argparse.Namespace
) -> Iterator[job_lib.Job]:
  """Gives a job certificates, if options ask for it, as long as it runs.

  Args:
    job: the job.
    options: the launcher's, which `check` has checked.

  Yields:
    The job.

  Raises:
    ValueError: certificates are wrong or cannot be made.
  """
  if not _is_secure(options):
    yield job
  elif options.secure_directory is not None:
    folder = options.secure_directory.absolute()
    own = dataclasses.replace(job, certificates=folder)
    if options.engine != 'kubernetes':  # where it is a folder of pods
      own.check_certificates()
    yield own
  else:
    with tempfile.TemporaryDirectory(prefix='tfps-secure-') as name:
      folder = pathlib.Path(name)
      try:
        certificates.make(
          folder, job.tasks(), valid_hours=_VALID_HOURS, keeps_ca_key=False
        )
      except ImportError as error:
        raise ValueError(f'--secure: {error}') from error
      yield dataclasses.replace(job, certificates=folder)


def observation(job: job_lib.Job, cluster: spec_lib.Cluster) -> str:
  """Returns a shell command that observes a secured job, from outside of it.

  Args:
    job: the job.
    cluster: the addresses of its tasks.
  """
  observer = spec_lib.Task(job_lib.EVALUATOR, 0)  # a task without a server
  env = {
    **job.security_env(job.chief()),
    'TF_CONFIG': cluster.with_task(observer).tf_config(),
  }
  settings = [f'{name}={value}' for name, value in env.items()]
  return shlex.join(['env', *settings, 'tfps', 'enclose', '--', 'tfps', 'top'])


def _is_secure(options: argparse.Namespace) -> bool:
  return options.secure or options.secure_directory is not None
