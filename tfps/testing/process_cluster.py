"""Clusters of operating-system processes, which tests can kill and freeze."""

from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
import os
import pathlib
import signal
import subprocess
import tempfile
import time

from tfps import errors
from tfps._utils import ports
from tfps._utils import processes
from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib
from tfps.launch import forked_process
from tfps.server import health
from tfps.testing import _hosts
from tfps.testing import _logs
from tfps.testing import _starts
from tfps.testing import _stops
from tfps.testing.chaos import network as network_lib


class ProcessCluster:
  """Runs workers, ps and optionally a chief as processes; a context manager.

  ```
  with ProcessCluster(num_workers=2, num_ps=2) as cluster:
    strategy = tfps.ParameterServerStrategy(cluster.cluster)
    cluster.kill('worker', 1)
  ```

  Entering starts the tasks and waits until their servers answer. Leaving kills
  tasks that still run. Tasks die with this process, however it ends.

  Args:
    num_workers: number of workers.
    num_ps: number of ps.
    commands: the command of each job's tasks, which get `TF_CONFIG` in their
      environment. By default ps and workers serve, as `tfps.serve` does, and
      this process is the chief. If workers have a command, as in between-graph
      mode, the cluster has a chief only if it has a command, too.
    env: variables to add to this process' environment for the tasks.
    preload: modules that the commands' programs import, such as
      ('tensorflow', 'keras'). They are imported once, and programs that are a
      file or module of this Python are forked with them, so that they start at
      once. By default programs are not forked; servers always are.
    log_dir: folder for each task's output, such as ps-0.log; by default a
      temporary one that leaving removes.
    held_back: tasks that entering does not start, such as ('worker:1',); see
      `start`.
    start_timeout_secs: how long servers may take to answer.
    on_hosts: gives each task a host of its own: a network namespace, which
      requires root. This process is on none of them, so all tasks need
      commands, and none is forked.
    mbit_per_sec: the rate of each host's link in each direction; None for no
      limit.

  Attributes:
    cluster: the tasks and their addresses.
    network: the hosts; None without `on_hosts`.

  Raises:
    ValueError: a module to preload does not exist, or no task trains.
    errors.ServerStartError: on entering, a server did not answer in time or
      ended; quotes its log.
    RuntimeError: on entering, the machine cannot make networks.
  """

  def __init__(
    self,
    num_workers: int,
    num_ps: int,
    *,
    commands: Mapping[str, Sequence[str]] | None = None,
    env: Mapping[str, str] | None = None,
    preload: Collection[str] = (),
    log_dir: str | os.PathLike[str] | None = None,
    held_back: Collection[str] = (),
    start_timeout_secs: float = 120.0,
    on_hosts: bool = False,
    mbit_per_sec: float | None = None,
  ) -> None:
    self._commands = {
      'ps': _starts.SERVE,
      'worker': _starts.SERVE,
      **(commands or {}),
    }
    self._env = {**os.environ, 'PYTHONUNBUFFERED': '1', **(env or {})}
    self._preload = forked_process.check_preload(tuple(preload))
    self._held_back = frozenset(held_back)
    self._start_timeout_secs = start_timeout_secs
    self._temporary = tempfile.TemporaryDirectory(prefix='tfps-')
    self._logs = _logs.Logs(pathlib.Path(log_dir or self._temporary.name))
    self._processes: dict[spec_lib.Task, _starts.Process] = {}
    # The cluster as each task got it at its first start.
    self._told: dict[spec_lib.Task, spec_lib.Cluster] = {}
    self._frozen: set[spec_lib.Task] = set()
    self.network: network_lib.Network | None = None
    numbers = _starts.numbers(self._commands, num_workers, num_ps)
    if on_hosts:
      _starts.check_trains(self._commands)
      self.network = network_lib.Network(sum(numbers.values()), mbit_per_sec)
    self._hosts = _hosts.Hosts(self.network)
    self.cluster = self._hosts.cluster(numbers)

  def __enter__(self) -> 'ProcessCluster':
    self._logs.make_folder()
    try:
      if self.network is not None:
        self.network.__enter__()
      for task in self._own_tasks():
        if str(task) not in self._held_back:
          self._start(task)
      self._wait_for_servers()
    except BaseException:
      self.stop()
      raise
    return self

  def __exit__(self, *exc_info: object) -> None:
    self.stop()

  def start(self, job: str, index: int, *, elsewhere: bool = False) -> None:
    """Starts a task that was held back or has ended; waits for its server.

    Args:
      job: its job, such as 'worker'.
      index: its index.
      elsewhere: whether it gets a new address, which other tasks are not told.

    Raises:
      ValueError: the task runs, is not in the cluster, or has its own host.
      errors.ServerStartError: its server does not answer in time.
    """
    task = self._task(job, index)
    if self._runs(task):
      raise ValueError(f'{task} runs already. Use restart, or kill it first.')
    if elsewhere:
      self._assign(task)
    self._start(task)
    self._wait_for_servers()

  def add_worker(self) -> spec_lib.Task:
    """Starts an additional worker that is not in other tasks' `TF_CONFIG`.

    Returns:
      The new task.

    Raises:
      ValueError: the tasks are on hosts, none of which is free.
      errors.ServerStartError: its server does not answer in time.
    """
    task = spec_lib.Task('worker', len(self.cluster.jobs['worker']))
    self._assign(task)
    self.start(task.job, task.index)
    return task

  def kill(self, job: str, index: int) -> None:
    """Kills a task's process group with SIGKILL, and waits for its end.

    Args:
      job: its job, such as 'worker'.
      index: its index.

    Raises:
      ValueError: the task is not in the cluster or was not started.
    """
    task = self._task(job, index)
    processes.kill(self._process(task))
    self._frozen.discard(task)

  def terminate(self, job: str, index: int) -> None:
    """Sends SIGTERM to a task; see `kill` about arguments and errors."""
    self._process(self._task(job, index)).terminate()

  def restart(self, job: str, index: int) -> None:
    """Kills a task if it runs; starts it where it was. See `kill`, `start`."""
    self.kill(job, index)
    self.start(job, index)

  def freeze(self, job: str, index: int) -> None:
    """Stops a task with SIGSTOP: it keeps its port and does not answer.

    Args:
      job: its job, such as 'worker'.
      index: its index.

    Raises:
      ValueError: the task is not in the cluster or was not started.
      errors.DeadlineError: some of its threads did not stop in time.
    """
    task = self._task(job, index)
    self._process(task).send_signal(signal.SIGSTOP)
    self._frozen.add(task)
    _stops.wait(task, self._process(task).pid)

  def thaw(self, job: str, index: int) -> None:
    """Continues a frozen task; see `kill` about arguments and errors."""
    task = self._task(job, index)
    self._process(task).send_signal(signal.SIGCONT)
    self._frozen.discard(task)

  def cut(
    self, job: str, index: int, other: spec_lib.Task | None = None
  ) -> None:
    """Drops all packets between a task's host and others; see `Network.cut`.

    Args:
      job: its job, such as 'worker'.
      index: its index.
      other: the task from whose host it is disconnected; by default from all.

    Raises:
      ValueError: the tasks are not on hosts, or one is not in the cluster.
    """
    self._hosts.cut(*self._addresses(job, index, other))

  def mend(
    self, job: str, index: int, other: spec_lib.Task | None = None
  ) -> None:
    """Undoes `cut` with the same arguments; see `cut` about them."""
    self._hosts.mend(*self._addresses(job, index, other))

  def traffic(self, job: str, index: int) -> network_lib.Traffic:
    """Returns the bytes that a task's host has received and sent.

    Args:
      job: its job, such as 'worker'.
      index: its index.

    Raises:
      ValueError: the tasks are not on hosts, or it is not in the cluster.
    """
    return self._hosts.traffic(self.cluster.address(self._task(job, index)))

  def pid(self, job: str, index: int) -> int:
    """Returns a task's process id; see `kill` about arguments and errors."""
    return self._process(self._task(job, index)).pid

  def log(self, job: str, index: int) -> str:
    """Returns a task's output so far, over all its starts; see `kill`."""
    return self._logs.read(self._task(job, index))

  def wait(self, job: str, index: int, *, timeout_secs: float) -> int:
    """Waits until a task ends.

    Args:
      job: its job, such as 'worker'.
      index: its index.
      timeout_secs: how long to wait.

    Returns:
      Its exit status, or minus the signal that ended it.

    Raises:
      ValueError: the task is not in the cluster or was not started.
      errors.DeadlineError: it still runs; the message ends with its log.
    """
    task = self._task(job, index)
    try:
      return self._process(task).wait(timeout_secs)
    except subprocess.TimeoutExpired as error:
      raise errors.DeadlineError(
        f'{task} still runs after {timeout_secs:g} seconds.'
        f'{self._logs.tail(task)}'
      ) from error

  def wait_for_line(
    self, job: str, index: int, beginning: str, *, timeout_secs: float
  ) -> None:
    """Waits until a task has written a line with the given beginning.

    Args:
      job: its job, such as 'worker'.
      index: its index.
      beginning: how the line begins.
      timeout_secs: how long to wait.

    Raises:
      ValueError: the task is not in the cluster.
      errors.DeadlineError: it has not; the message ends with its log.
    """
    task = self._task(job, index)
    self._logs.wait_for_line(task, beginning, timeout_secs)

  def heal(self) -> None:
    """Thaws frozen tasks and restarts those that have ended or are ending."""
    for task in sorted(self._frozen):
      self.thaw(task.job, task.index)
    deadline = time.monotonic() + self._start_timeout_secs
    begun: list[spec_lib.Task] = []
    while True:
      for task in self._own_tasks():
        if not self._runs(task):
          self._start(task)
          begun.append(task)
      try:
        self._wait_for_servers()
        return self._keep_servers()
      except (errors.ServerStartError, errors.UnreachableError):
        # A server is shutting down, unless it is one that cannot start.
        is_over = time.monotonic() > deadline
        if is_over or not all(self._runs(task) for task in begun):
          raise
        time.sleep(timeouts.current().poll_secs)

  def stop(self) -> None:
    """Kills tasks that still run; twice is harmless."""
    for process in self._processes.values():
      processes.kill(process)
    if self.network is not None:
      self.network.stop()
    self._temporary.cleanup()

  def _assign(self, task: spec_lib.Task) -> None:
    """Gives a task an address that tasks which have started do not know."""
    if self.network is not None:
      raise ValueError(f'{task}: there is no host for it.')
    self._told.pop(task, None)
    self.cluster = self.cluster.with_address(task, f'localhost:{ports.pick()}')

  def _addresses(
    self, job: str, index: int, other: spec_lib.Task | None
  ) -> tuple[str, str | None]:
    address = self.cluster.address(self._task(job, index))
    return address, None if other is None else self.cluster.address(other)

  def _own_tasks(self) -> list[spec_lib.Task]:
    """Returns the tasks that are processes of this cluster."""
    return [t for t in self.cluster.tasks() if t.job in self._commands]

  def _task(self, job: str, index: int) -> spec_lib.Task:
    task = spec_lib.Task(job, index)
    if task not in self._own_tasks():
      known = ', '.join(map(str, self._own_tasks()))
      raise ValueError(f'{task} is no process here. There are {known}.')
    return task

  def _process(self, task: spec_lib.Task) -> _starts.Process:
    if task not in self._processes:
      raise ValueError(f'{task} was not started. Call start first.')
    return self._processes[task]

  def _runs(self, task: spec_lib.Task) -> bool:
    return task in self._processes and self._processes[task].poll() is None

  def _start(self, task: spec_lib.Task) -> None:
    told = self._told.setdefault(task, self.cluster).with_task(task)
    env = {**self._env, 'TF_CONFIG': told.tf_config()}
    address = self.cluster.address(task)
    command = self._hosts.within(address, self._commands[task.job])
    with self._logs.begin(task) as log:
      self._processes[task] = _starts.start(
        command,
        env=env,
        log=log,
        preload=self._preload,
        timeout_secs=self._start_timeout_secs,
      )

  def _servers(self) -> list[spec_lib.Task]:
    own = self._own_tasks()
    return [t for t in own if _starts.serves(self._commands[t.job])]

  def _wait_for_servers(self) -> None:
    """Waits until the servers of running tasks answer."""
    deadline = time.monotonic() + self._start_timeout_secs
    for task in self._servers():
      if self._runs(task):
        self._wait_for_server(task, deadline)

  def _keep_servers(self) -> None:
    """Cancels the end of training, if this process has announced it."""
    if self.cluster.task == spec_lib.CHIEF and 'chief' not in self._commands:
      _starts.keep_servers(self.cluster, self._servers())

  def _wait_for_server(self, task: spec_lib.Task, deadline: float) -> None:
    while task not in self._frozen:
      if self._is_ready(task):
        return
      if not self._runs(task) or time.monotonic() > deadline:
        raise errors.ServerStartError(
          f'{task} does not answer at {self.cluster.address(task)}.'
          f'{self._logs.tail(task)}'
        )
      time.sleep(timeouts.current().poll_secs)

  def _is_ready(self, task: spec_lib.Task) -> bool:
    """Returns whether a client may connect; see `_compat.eager_contexts`."""
    return self._logs.has(task, f'{task} is ready at ') and (
      self.network is not None  # hosts cannot be reached from here
      or health.is_alive(task, self.cluster.address(task))
    )
