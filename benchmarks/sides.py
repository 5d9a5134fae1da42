"""Processes that work when they are told to, so that they can take turns.

A benchmark compares sides. Each is a cluster of its own, whose chief, or whose
workers between graphs, take orders such as 'scalar 100' from one pipe and
answer through another once the work is done.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import dataclasses
import os
import pathlib
import select
import sys
import tempfile
import time
from typing import Any

import tfps
from tfps import testing
from tfps._utils import ports
from tfps._utils import processes

Command = Callable[[str], Sequence[str]]

_ENV = {'TF_CPP_MIN_LOG_LEVEL': os.environ.get('TF_CPP_MIN_LOG_LEVEL', '2')}
_TIMEOUT_SECS = 600.0


class Side:
  """Tasks that take orders; a context manager.

  Args:
    tasks: their names.
  """

  def __init__(self, tasks: Sequence[str]) -> None:
    self._stack = contextlib.ExitStack()
    self.folder = self._stack.enter_context(tempfile.TemporaryDirectory())
    self._tasks = list(tasks)
    self._orders, self._answers = (
      {task: self._pipe(f'{self.folder}/{task}.{what}') for task in tasks}
      for what in ('orders', 'answers')
    )

  def __enter__(self) -> Any:
    return self

  def __exit__(self, *exc_info: object) -> None:
    self._stack.close()

  def run(self, what: str, num_steps: int) -> None:
    """Does so many steps, shared out among those that take orders."""
    share = num_steps // len(self._tasks)
    for orders in self._orders.values():
      os.write(orders, f'{what} {share}\n'.encode())
    deadline = time.monotonic() + _TIMEOUT_SECS
    for task, answers in self._answers.items():
      while not select.select([answers], [], [], 1.0)[0]:
        self._check_alive()
        if time.monotonic() > deadline:
          raise tfps.DeadlineError(
            f"{task} has not done '{what} {share}' after {_TIMEOUT_SECS:g} "
            f'seconds. Its log ends:\n{processes.end_of_log(self._log(task))}'
          )
      os.read(answers, len('done\n'))

  def pids(self) -> dict[str, int]:
    """The process of each task."""
    raise NotImplementedError

  def ports(self) -> set[int]:
    """Those at which tasks can be reached, as far as they are known."""
    return set()

  def _status(self, task: str) -> int | None:
    """The exit status of a task that has ended."""
    raise NotImplementedError

  def _log(self, task: str) -> str:
    raise NotImplementedError

  def _pipe(self, path: str) -> int:
    """Opened for both directions, which waits for nobody."""
    os.mkfifo(path)
    pipe = os.open(path, os.O_RDWR)
    self._stack.callback(os.close, pipe)
    return pipe

  def _check_alive(self) -> None:
    """Raises if a task has ended, of which others may wait in vain."""
    for task in self.pids():
      status = self._status(task)
      if status is not None:
        log = processes.end_of_log(self._log(task))
        raise RuntimeError(f'{task} has ended with status {status}:\n{log}')


class ClusterSide(Side):
  """A cluster of processes.

  Attributes:
    processes: the cluster that `make_cluster` has made.

  Args:
    command: what those run that take orders; gets the folder of the pipes.
    num_workers: how many workers.
    num_ps: how many ps.
    by_workers: whether workers take orders; else a chief does.
    preload: what those that take orders are forked with; see `ProcessCluster`.
    make_cluster: makes the cluster of processes.
  """

  def __init__(
    self,
    command: Command,
    num_workers: int,
    num_ps: int,
    *,
    by_workers: bool = False,
    preload: Sequence[str] = (),
    make_cluster: Callable[..., Any] = testing.ProcessCluster,
  ) -> None:
    job = 'worker' if by_workers else 'chief'
    super().__init__(
      [f'{job}:{i}' for i in range(num_workers if by_workers else 1)]
    )
    self.processes = make_cluster(
      num_workers,
      num_ps,
      commands={job: [sys.executable, *command(self.folder)]},
      env=_ENV,
      preload=preload,
    )

  @property
  def cluster(self) -> tfps.Cluster:
    return self.processes.cluster

  def __enter__(self) -> 'ClusterSide':
    self._stack.enter_context(self.processes)
    return self

  def pids(self) -> dict[str, int]:
    return {
      str(task): self.processes.pid(task.job, task.index)
      for task in self.cluster.tasks()
    }

  def ports(self) -> set[int]:
    addresses = (self.cluster.address(task) for task in self.cluster.tasks())
    return {int(address.rpartition(':')[2]) for address in addresses}

  def _status(self, task: str) -> int | None:
    job, index = task.split(':')
    with contextlib.suppress(tfps.DeadlineError):
      return self.processes.wait(job, int(index), timeout_secs=0)
    return None

  def _log(self, task: str) -> str:
    job, index = task.split(':')
    return self.processes.log(job, int(index))


@dataclasses.dataclass(frozen=True)
class Program:
  """What a process runs.

  Attributes:
    words: program and arguments.
    env: variables to add to this process' environment.
  """

  words: Sequence[str]
  env: Mapping[str, str] = dataclasses.field(default_factory=dict)


def local_cluster(**numbers: int) -> tfps.Cluster:
  """Makes a cluster at free ports of this machine.

  Args:
    **numbers: how many tasks each job has.
  """
  return tfps.Cluster(
    {
      job: [f'localhost:{ports.pick()}' for _ in range(number)]
      for job, number in numbers.items()
    }
  )


def words_of(task: tfps.Task, chief: Sequence[str]) -> list[str]:
  """What a task runs: a server, unless it is the chief.

  Args:
    task: the task.
    chief: the chief's module and its arguments.
  """
  module = chief if task.job == 'chief' else ['tfps.server']
  return [sys.executable, '-m', *module]


class ProgramsSide(Side):
  """Processes that find each other by themselves.

  Args:
    programs: by task, what each runs; gets the folder of the pipes.
    tasks: those that take orders.
  """

  def __init__(
    self, programs: Callable[[str], Mapping[str, Program]], tasks: Sequence[str]
  ) -> None:
    super().__init__(tasks)
    self._programs = programs(self.folder)
    self._processes: dict[str, processes.Leader] = {}

  def __enter__(self) -> 'ProgramsSide':
    for task, program in self._programs.items():
      with self._log_path(task).open('wb') as log:
        process = self._processes[task] = processes.spawn(
          program.words, env={**os.environ, **_ENV, **program.env}, stdout=log
        )
      self._stack.callback(processes.kill, process)
    return self

  def pids(self) -> dict[str, int]:
    return {task: each.pid for task, each in self._processes.items()}

  def _status(self, task: str) -> int | None:
    return self._processes[task].poll()

  def _log(self, task: str) -> str:
    return self._log_path(task).read_text(errors='replace')

  def _log_path(self, task: str) -> pathlib.Path:
    return pathlib.Path(self.folder) / f'{task}.log'


class ProcessSide(ProgramsSide):
  """One process, which has a cluster within.

  Args:
    command: what it runs; gets the folder of the pipes.
  """

  def __init__(self, command: Command) -> None:
    super().__init__(
      lambda folder: {'chief:0': Program([sys.executable, *command(folder)])},
      ['chief:0'],
    )
