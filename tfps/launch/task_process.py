"""One task's program, as a child of a process that an engine has started.

Engines such as Ray and Spark have a process of their own for each task. It runs
the program under `tfps.launch.task`, copies its output, and hands back how it
ended.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import functools
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
from typing import BinaryIO

from tfps import errors
from tfps._compat import messages
from tfps._utils import processes
from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib
from tfps.launch import function
from tfps.launch import job as job_lib
from tfps.launch import supervisor
from tfps.launch import task_output


@dataclasses.dataclass(frozen=True)
class Outcome:
  """How a task ended.

  Attributes:
    status: its exit status, 128 + n if signal n ended it.
    last_lines: the last lines of its output.
    result: what its function returned, pickled; None without.
  """

  status: int
  last_lines: str = ''
  result: bytes | None = None

  def error(self, task: spec_lib.Task) -> errors.TaskFailedError:
    """Returns the error that says how the task failed.

    Args:
      task: the task.
    """
    return errors.TaskFailedError(
      f'{supervisor.describe(task, self.status)}. Its last output:\n'
      f'{self.last_lines}',
      task=str(task),
      status=self.status,
    )


@dataclasses.dataclass(frozen=True)
class Order:
  """Orders a task's machine to run the task, as an engine sends it.

  Attributes:
    job: the job.
    task: the task.
    call: a function to run instead of the job's program.
    folders: working directories; the first with the program is used.
    silent_secs: as for `tfps.launch.task`.
    has_prefixes: whether shown lines begin with the task's name.
  """

  job: job_lib.Job
  task: spec_lib.Task
  call: function.Call | None = None
  folders: tuple[str, ...] = ()
  silent_secs: float = 10.0
  has_prefixes: bool = False

  def wants_result(self) -> bool:
    """Returns whether the task's result is that of the job."""
    return self.task == self.job.chief()

  def folder(self) -> str:
    """Returns the working directory.

    Raises:
      ValueError: no folder has the program.
    """
    name = None if self.call else self.job.program[0]
    needed = '' if name in (None, '-m') else str(name)
    for folder in self.folders:
      if os.path.exists(os.path.join(folder, needed)):
        return folder
    raise ValueError(
      f'the program {needed!r} is not on {os.uname().nodename}, in '
      f'{" or ".join(self.folders)}. Put it on all machines at the same path, '
      'or have the engine send it.'
    )


class TaskProcess:
  """Runs an order's program; `stop` ends it from another thread.

  Args:
    order: the order.
    continues: whether it takes the place of a lost process, whose file with
      the output is continued.
    stream: receives the program's output; stdout by default.
  """

  def __init__(
    self,
    order: Order,
    *,
    continues: bool = False,
    stream: BinaryIO | None = None,
  ) -> None:
    self._order = order
    self._output = task_output.TaskOutput(
      [order.task],
      order.job.log_dir,
      has_prefixes=order.has_prefixes,
      appends=continues,
      stream=stream,
      is_shown=functools.partial(
        messages.is_shown, env={**os.environ, **order.job.env}
      ),
    )
    self._lock = threading.Lock()  # for the next two
    self._process: processes.Leader | None = None
    self._is_stopped = False

  def run(
    self, cluster: spec_lib.Cluster, env: Mapping[str, str] | None = None
  ) -> Outcome:
    """Runs the program to its end.

    Args:
      cluster: the addresses of all tasks.
      env: variables to set besides the job's.
    """
    with tempfile.TemporaryDirectory(prefix='tfps-task-') as scratch:
      try:
        process = self._start(cluster, env or {}, pathlib.Path(scratch))
      except (ValueError, OSError) as error:
        return Outcome(1, f'{error}\n')
      if process is None:
        return Outcome(128 + signal.SIGTERM)
      status = self._finish(process)
      result = function.stored_result(pathlib.Path(scratch))
    last_lines = self._output.last_lines(self._order.task)
    return Outcome(status, last_lines, result if status == 0 else None)

  def stop(self) -> None:
    """Sends SIGTERM; after the job's grace_secs, the program is killed."""
    self._end(signal.SIGTERM)

  def kill(self) -> None:
    """Kills the program at once."""
    self._end(signal.SIGKILL)

  def _end(self, number: signal.Signals) -> None:
    with self._lock:
      self._is_stopped = True
      # `run` reaps it, under the lock: until then its number is its own.
      if self._process is not None:
        processes.kill_group(self._process.pid, number)

  def _start(
    self,
    cluster: spec_lib.Cluster,
    env: Mapping[str, str],
    scratch: pathlib.Path,
  ) -> processes.Leader | None:
    """Starts the program, unless it is stopped already."""
    order = self._order
    args = order.job.command()
    if order.call:
      function.store(order.call, scratch, wants_result=order.wants_result())
      args = order.job.enclosed(
        sys.executable, '-m', function.MODULE, str(scratch)
      )
    own = {**os.environ, **order.job.added_env(), **env}
    own['TF_CONFIG'] = cluster.with_task(order.task).tf_config()
    folder = order.folder()
    with self._lock:
      if not self._is_stopped:
        self._process = processes.spawn(
          [*_supervised(order), *args],
          env=own,
          stdout=subprocess.PIPE,
          cwd=folder,
        )
      return self._process

  def _finish(self, process: processes.Leader) -> int:
    assert process.stdout is not None
    reader = threading.Thread(
      target=self._output.copy,
      args=(self._order.task, process.stdout),
      name=f'tfps-read-{self._order.task}',
      daemon=True,
    )
    reader.start()
    process.has_ended(None)
    reader.join(timeouts.current().output_drain_secs)
    with self._lock:
      self._process = None
      status = process.wait()
    return status if status >= 0 else 128 - status


def _supervised(order: Order) -> Sequence[str]:
  return (
    *(sys.executable, '-m', 'tfps.launch.task'),
    f'--max_restarts={order.job.max_restarts}',
    f'--grace_secs={order.job.grace_secs:g}',
    f'--silent_secs={order.silent_secs:g}',
    *order.job.secure_options(),
    '--',
  )
