"""Processes that work when they are told to, so that they can take turns.

A benchmark compares sides. Each is a cluster of its own, whose chief, or whose
workers between graphs, take orders such as 'scalar 100' from one pipe and
answer through another once the work is done.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import os
import pathlib
import select
import subprocess
import sys
import tempfile
import time
from typing import Any

import tfps
from tfps import testing

Command = Callable[[str], Sequence[str]]

_ENV = {'TF_CPP_MIN_LOG_LEVEL': os.environ.get('TF_CPP_MIN_LOG_LEVEL', '2')}
_LOG_TAIL = 2000
_TIMEOUT_SECS = 600.0


def take_orders(folder: str, task: str) -> Iterator[str]:
  """Within a program: the orders, each done when the next is asked for."""
  pipe = pathlib.Path(folder) / task
  with (
    open(f'{pipe}.orders') as orders,
    open(f'{pipe}.answers', 'w') as answers,
  ):
    for order in orders:
      yield order.strip()
      print('done', file=answers, flush=True)


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
        self._check_alive(task)
        if time.monotonic() > deadline:
          raise tfps.DeadlineError(
            f"{task} has not done '{what} {share}' after {_TIMEOUT_SECS:g} "
            f'seconds. Its log ends:\n{self._log(task)[-_LOG_TAIL:]}'
          )
      os.read(answers, len('done\n'))

  def pids(self) -> dict[str, int]:
    """The process of each task."""
    raise NotImplementedError

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

  def _check_alive(self, task: str) -> None:
    status = self._status(task)
    if status is not None:
      log = self._log(task)[-_LOG_TAIL:]
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

  def _status(self, task: str) -> int | None:
    job, index = task.split(':')
    with contextlib.suppress(tfps.DeadlineError):
      return self.processes.wait(job, int(index), timeout_secs=0)
    return None

  def _log(self, task: str) -> str:
    job, index = task.split(':')
    return self.processes.log(job, int(index))


class ProcessSide(Side):
  """One process, which has a cluster within.

  Args:
    command: what it runs; gets the folder of the pipes.
  """

  _TASK = 'chief:0'

  def __init__(self, command: Command) -> None:
    super().__init__([self._TASK])
    self._command = [sys.executable, *command(self.folder)]
    self._log_path = pathlib.Path(self.folder) / 'log'

  def __enter__(self) -> 'ProcessSide':
    with self._log_path.open('wb') as log:
      self._process = subprocess.Popen(
        self._command,
        env={**os.environ, **_ENV},
        stdout=log,
        stderr=subprocess.STDOUT,
      )
    self._stack.callback(self._process.wait)
    self._stack.callback(self._process.kill)
    return self

  def pids(self) -> dict[str, int]:
    return {self._TASK: self._process.pid}

  def _status(self, task: str) -> int | None:
    return self._process.poll()

  def _log(self, task: str) -> str:
    return self._log_path.read_text(errors='replace')
