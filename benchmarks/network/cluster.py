"""A cluster with each task on a host of its own."""

from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile

from benchmarks.network import hosts
import tfps

_PORT = 2222
_SERVE = (sys.executable, '-m', 'tfps.server')
_LOG_TAIL = 2000


class NetworkCluster:
  """Ps, workers and a chief, each on a host of its own; a context manager.

  It is to a network what `tfps.testing.ProcessCluster` is to this machine, but
  for this process, which is on no host and therefore no task.

  Args:
    num_workers: how many workers.
    num_ps: how many ps.
    mbit_per_sec: the rate of each link, each way; None for no limit.
    commands: what the tasks of a job run, with `TF_CONFIG` in their
      environment: ps and workers serve by default. A chief needs a command,
      and without one the workers do, as in between-graph mode.
    env: what to add to this process' environment.
  """

  def __init__(
    self,
    num_workers: int,
    num_ps: int,
    mbit_per_sec: float | None,
    *,
    commands: Mapping[str, Sequence[str]],
    env: Mapping[str, str] | None = None,
  ) -> None:
    if not {'chief', 'worker'} & set(commands):
      raise ValueError(
        'NetworkCluster: nobody trains. Give a command for the chief, or for '
        'the workers.'
      )
    self._commands = {'ps': _SERVE, 'worker': _SERVE, **commands}
    self._env = {'PYTHONUNBUFFERED': '1', **(env or {})}
    self._hosts = _hosts(num_workers, num_ps, 'chief' in commands)
    self.network = hosts.Network(len(self._hosts), mbit_per_sec)
    self.cluster = self._cluster()
    self._stack = contextlib.ExitStack()
    self._processes: dict[tfps.Task, subprocess.Popen[bytes]] = {}

  def __enter__(self) -> 'NetworkCluster':
    with contextlib.ExitStack() as stack:
      temporary = tempfile.TemporaryDirectory(prefix='tfps-')
      self._log_dir = pathlib.Path(stack.enter_context(temporary))
      stack.enter_context(self.network)
      for task in self._hosts:
        self._processes[task] = self._start(task)
      self._stack = stack.pop_all()
    return self

  def __exit__(self, *exc_info: object) -> None:
    self._stack.close()

  def bytes(self, job: str, index: int) -> hosts.Bytes:
    """What the interface of a task's host has counted so far."""
    return self.network.bytes(self._hosts[tfps.Task(job, index)])

  def pid(self, job: str, index: int) -> int:
    """The process id of a task."""
    return self._processes[tfps.Task(job, index)].pid

  def log(self, job: str, index: int) -> str:
    """What a task has written so far."""
    return self._log_path(tfps.Task(job, index)).read_text(errors='replace')

  def wait(self, job: str, index: int, *, timeout_secs: float) -> int:
    """Waits for a task to end; its exit status, or minus the signal.

    Raises:
      tfps.DeadlineError: it still runs; the message ends with its log.
    """
    task = tfps.Task(job, index)
    try:
      return self._processes[task].wait(timeout_secs)
    except subprocess.TimeoutExpired as error:
      raise tfps.DeadlineError(
        f'{task} still runs after {timeout_secs:g} seconds. Its log ends:\n'
        f'{self.log(job, index)[-_LOG_TAIL:]}'
      ) from error

  def _cluster(self) -> tfps.Cluster:
    jobs: dict[str, list[str]] = {}
    for task, host in self._hosts.items():
      address = f'{self.network.address(host)}:{_PORT}'
      jobs.setdefault(task.job, []).append(address)
    return tfps.Cluster(jobs, source='NetworkCluster')

  def _start(self, task: tfps.Task) -> subprocess.Popen[bytes]:
    with self._log_path(task).open('wb') as log:
      return self.network.popen(
        self._hosts[task],
        self._commands[task.job],
        {**self._env, 'TF_CONFIG': self.cluster.with_task(task).tf_config()},
        stdout=log,
        stderr=subprocess.STDOUT,
        cwd=os.getcwd(),
      )

  def _log_path(self, task: tfps.Task) -> pathlib.Path:
    return self._log_dir / f'{task.job}-{task.index}.log'


def _hosts(
  num_workers: int, num_ps: int, has_chief: bool
) -> dict[tfps.Task, int]:
  """A host for each task."""
  numbers = {'ps': num_ps, 'worker': num_workers, 'chief': int(has_chief)}
  tasks = (
    tfps.Task(job, i) for job, number in numbers.items() for i in range(number)
  )
  return {task: host for host, task in enumerate(tasks)}
