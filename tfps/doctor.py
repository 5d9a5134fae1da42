"""Checks whether a machine and its cluster are ready for training.

`python -m tfps.doctor` takes the same flags and environment as a program that
calls `tfps.resolve_cluster`, and probes every other task.
"""

import argparse
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from importlib import metadata
import itertools
import os
import pathlib
import platform
import subprocess
import sys

from absl import flags

from tfps._utils import timeouts
from tfps.cluster import resolver
from tfps.cluster import spec as spec_lib
from tfps.security import enclosure
from tfps.server import health

# A child imports TensorFlow, because a build for another machine may crash or
# hang.
_LIST_DEVICES = """
import os
import tensorflow as tf
names = (d.name.split(':', 1)[1] for d in tf.config.list_physical_devices())
print(*names, flush=True)
os._exit(0)  # a last look for garbage would take two seconds
"""
_SETTINGS = (
  'CUDA_VISIBLE_DEVICES',
  'KERAS_BACKEND',
  'OMP_NUM_THREADS',
  'TF_NUM_INTEROP_THREADS',
  'TF_NUM_INTRAOP_THREADS',
  # gRPC uses these for connections to tasks, too.
  'grpc_proxy',
  'http_proxy',
  'https_proxy',
  'no_proxy',
)
_GIB = 1 << 30


@dataclasses.dataclass(frozen=True)
class Finding:
  """One line of the report.

  Attributes:
    topic: the subject, such as 'tensorflow' or 'ps:0'.
    text: the result.
    wrong: whether training would fail.
  """

  topic: str
  text: str
  wrong: bool = False

  def __str__(self) -> str:
    mark = '!' if self.wrong else ' '
    return f'{mark} {self.topic:<12}{self.text}'


def main(argv: Sequence[str] | None = None) -> int:
  """Prints the report.

  Args:
    argv: options and flags; by default the command line's.

  Returns:
    1 if something is wrong, otherwise 0.

  Raises:
    SystemExit: with status 2, after a message, for wrong options.
  """
  options, cluster_flags = _parse(argv)
  wrong = []
  for finding in itertools.chain(
    examine_machine(os.environ),
    examine_cluster(
      os.environ, cluster_flags, timeout_secs=options.timeout_secs
    ),
  ):
    print(finding, flush=True)
    if finding.wrong:
      wrong.append(finding.topic)
  print(f'\nWrong: {", ".join(wrong)}.' if wrong else '\nNothing is wrong.')
  return 1 if wrong else 0


def examine_machine(env: Mapping[str, str]) -> Iterator[Finding]:
  """Yields versions, devices and limits, each as soon as it is known.

  Args:
    env: the environment of the checks.
  """
  yield Finding('python', f'{platform.python_version()} ({sys.executable})')
  for package in ('tfps', 'tensorflow', 'keras'):
    yield _version(package)
  yield _devices(env)
  yield Finding('machine', f'{_cores()}, {_memory()}')
  for name in _SETTINGS:
    if name in env:
      yield Finding('environment', f'{name}={env[name]}')


def examine_cluster(
  env: Mapping[str, str], flag_values: flags.FlagValues, *, timeout_secs: float
) -> Iterator[Finding]:
  """Yields the cluster, and whether each of its other tasks answers.

  Args:
    env: the environment from which the cluster is resolved.
    flag_values: parsed flags from which the cluster is resolved.
    timeout_secs: how long each task may take to answer.
  """
  try:
    cluster = resolver.resolve_cluster(env, flag_values)
  except ValueError as error:
    yield Finding('cluster', str(error), wrong=True)
    return
  jobs = [f'{len(addresses)} {job}' for job, addresses in cluster.jobs.items()]
  members = ', '.join(jobs) or 'one local task'
  yield Finding('cluster', f'{members}; from {cluster.source}')
  yield Finding('task', str(cluster.task))
  yield from _reach(cluster, timeout_secs)


def _version(package: str) -> Finding:
  try:
    return Finding(package, metadata.version(package))
  except metadata.PackageNotFoundError:
    # Builds such as tensorflow-cpu have another name.
    owners = metadata.packages_distributions().get(package, [])
  if not owners:
    return Finding(package, 'is not installed', wrong=True)
  return Finding(package, f'{metadata.version(owners[0])} ({owners[0]})')


def _devices(env: Mapping[str, str]) -> Finding:
  secs = timeouts.current().start_secs
  try:
    done = subprocess.run(
      [sys.executable, '-c', _LIST_DEVICES],
      env=dict(env),
      capture_output=True,
      text=True,
      timeout=secs,
    )
  except subprocess.TimeoutExpired:
    text = f'TensorFlow did not list them in {secs:g} seconds'
    return Finding('devices', text, wrong=True)
  if done.returncode:
    last = (done.stderr.strip().splitlines() or ['no message'])[-1]
    text = f'TensorFlow failed with status {done.returncode}: {last}'
    return Finding('devices', text, wrong=True)
  return Finding('devices', done.stdout.strip())


def _cores() -> str:
  usable = len(os.sched_getaffinity(0))
  text = f'{usable} core{"" if usable == 1 else "s"}'
  quota, _, period = _read('/sys/fs/cgroup/cpu.max').partition(' ')
  if quota.isdecimal():
    return f'{text}, of which {int(quota) / int(period):g} may be used at once'
  return text


def _memory() -> str:
  pairs = (line.split(':') for line in _read('/proc/meminfo').splitlines())
  gib = {name: int(rest.split()[0]) / (1 << 20) for name, rest in pairs}
  text = f'{gib["MemAvailable"]:.1f} of {gib["MemTotal"]:.1f} GiB memory free'
  limit = _read('/sys/fs/cgroup/memory.max')
  if limit.isdecimal():
    return f'{text}, limited to {int(limit) / _GIB:.1f}'
  return text


def _read(path: str) -> str:
  """Returns a file's text; empty if there is no such file."""
  try:
    return pathlib.Path(path).read_text().strip()
  except FileNotFoundError:
    return ''


def _reach(cluster: spec_lib.Cluster, timeout_secs: float) -> Iterator[Finding]:
  """Probes all tasks but the own one in parallel."""
  others = {
    task: cluster.address(task)
    for task in cluster.tasks()
    if task != cluster.task
  }
  exposed = []
  for status in health.probe_all(others, timeout_secs=timeout_secs):
    alive = status.state is health.State.ALIVE
    text = f'{status.address} {status.detail}'
    yield Finding(str(status.task), text, wrong=not alive)
    if alive and not enclosure.is_within():
      exposed.append(str(status.task))
  if exposed:
    text = f'{", ".join(exposed)} answered without TLS, as they do to everybody'
    yield Finding('security', text)


def _parse(
  argv: Sequence[str] | None,
) -> tuple[argparse.Namespace, flags.FlagValues]:
  """Returns the options, and the flags that define the cluster."""
  parser = _parser()
  options, rest = parser.parse_known_args(argv)
  cluster_flags = flags.FlagValues()
  resolver.define_flags(cluster_flags)
  try:
    surplus = cluster_flags(['doctor', *rest])[1:]
  except flags.Error as error:
    parser.error(str(error))
  if surplus:
    parser.error(f'{surplus[0]!r} is not an option.')
  return options, cluster_flags


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog='tfps doctor',
    description=__doc__.splitlines()[0],
    epilog='Also the flags that define the cluster: --job_name, '
    '--task_index, --ps_hosts, --worker_hosts, --chief_hosts. '
    'Status: 0 if nothing is wrong, 1 if something is, 2 for a wrong option.',
    allow_abbrev=False,
  )
  parser.add_argument(
    '--timeout_secs',
    type=float,
    default=5.0,
    help='how long each task may take to answer (default: 5)',
  )
  return parser


if __name__ == '__main__':
  sys.exit(main())
