"""A job to launch: how many tasks of each kind, and the program they run."""

from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
import os
import pathlib
import sys

from tfps.cluster import spec as spec_lib
from tfps.monitor import dashboard
from tfps.monitor import endpoint
from tfps.security import config as security_lib
from tfps.server import environment

EVALUATOR = 'evaluator'
_VISIBLE = 'CUDA_VISIBLE_DEVICES'
_NO_GPUS = '-1'
_SECURE_DIRECTORY = '--secure_directory'
_ENCLOSE = 'tfps.security.enclose_command'


@dataclasses.dataclass(frozen=True)
class Job:
  """A program and the tasks that run it, the same for every engine.

  `Job(('train.py', '--steps=1000'), num_workers=4, num_ps=2)`

  Attributes:
    program: a file or `-m` and a module, and arguments.
    num_workers: number of workers, at least 1.
    num_ps: number of ps; 0 for programs that use none.
    num_chiefs: 1, or 0 for between-graph programs whose chief is worker:0.
    num_evaluators: 1 for a task that evaluates checkpoints, otherwise 0.
    env: variables that are added to each task's environment.
    gpus_per_worker: GPUs that each worker sees, and no other task any; None
      leaves to each task what it sees by itself.
    max_restarts: how many tasks are started again after a status of 128 or
      more: in all where one process supervises all tasks, else of each task.
    grace_secs: seconds that a task has to exit after SIGTERM.
    log_dir: the folder for each task's output, such as ps-0.log; None for the
      engine's default.
    metrics_port: 'port' or 'host:port' of the first task's metrics; each
      further task has the next port. None for no metrics.
    dashboard_port: 'port' or 'host:port' of the web page of the chief; None for
      no page.
    certificates: the folder with all tasks' certificates, each of which then
      runs enclosed; None for tasks without TLS.

  Raises:
    ValueError: a number is too small, or the program is empty.
  """

  program: tuple[str, ...]
  num_workers: int = 1
  num_ps: int = 1
  num_chiefs: int = 1
  num_evaluators: int = 0
  env: Mapping[str, str] = dataclasses.field(default_factory=dict)
  gpus_per_worker: int | None = None
  max_restarts: int = 0
  grace_secs: float = 10.0
  log_dir: pathlib.Path | None = None
  metrics_port: str | None = None
  dashboard_port: str | None = None
  certificates: pathlib.Path | None = None

  def __post_init__(self) -> None:
    if self.program in ((), ('-m',)):
      raise ValueError('The job has no program. Give prog.py or -m module.')
    if self.num_workers < 1:
      raise ValueError(f'num_workers is {self.num_workers}, not 1, 2, 3, ...')
    if self.num_ps < 0:
      raise ValueError(f'num_ps is {self.num_ps}, less than 0.')
    for name in ('num_chiefs', 'num_evaluators'):
      if getattr(self, name) not in (0, 1):
        raise ValueError(f'{name} is {getattr(self, name)}, not 0 or 1.')
    for name in ('gpus_per_worker', 'max_restarts', 'grace_secs'):
      if (getattr(self, name) or 0) < 0:
        raise ValueError(f'{name} is {getattr(self, name)}, less than 0.')

  def sizes(self) -> dict[str, int]:
    """Returns the number of tasks of each job of the cluster that has any."""
    sizes = {
      'chief': self.num_chiefs,
      'ps': self.num_ps,
      'worker': self.num_workers,
    }
    return {job: number for job, number in sizes.items() if number}

  def tasks(self) -> tuple[spec_lib.Task, ...]:
    """Returns all tasks: the cluster's, and the evaluator, which is in none."""
    sizes = {**self.sizes(), EVALUATOR: self.num_evaluators}
    return tuple(
      spec_lib.Task(job, i)
      for job, number in sizes.items()
      for i in range(number)
    )

  def chief(self) -> spec_lib.Task:
    """Returns the task whose result is that of the job."""
    return spec_lib.Task('chief' if self.num_chiefs else 'worker', 0)

  def command(self, python: str = sys.executable) -> tuple[str, ...]:
    """Returns the command that runs the program as a task.

    Args:
      python: the interpreter; by default this process'.
    """
    return self.enclosed(python, *self.program)

  def enclosed(self, python: str, *args: str) -> tuple[str, ...]:
    """Returns a command of Python's, enclosed if tasks have certificates.

    Args:
      python: the interpreter.
      *args: its arguments.
    """
    if self.certificates is None:
      return (python, *args)
    return (python, '-m', _ENCLOSE, '--', python, *args)

  def added_env(self) -> dict[str, str]:
    """Returns what each task's environment has besides the engine's."""
    growth = os.environ.get(environment.GROWTH_VARIABLE, 'true')
    return {
      'PYTHONUNBUFFERED': '1',
      # Here, too, for programs that use a GPU before they connect.
      environment.GROWTH_VARIABLE: growth,
      **self.env,
    }

  def ports_env(self, task: spec_lib.Task) -> dict[str, str]:
    """Returns variables with the ports of a task's metrics and of the page.

    Raises:
      ValueError: there is no such port, or it would let everybody see the page.
    """
    env = {}
    if self.metrics_port is not None:
      host, port = endpoint.parse(self.metrics_port, '--metrics_port')
      number = port + self.tasks().index(task)
      endpoint.parse(f'{host}:{number}', f'--metrics_port of {task}')
      env[endpoint.VARIABLE] = f'{host}:{number}'
    if (page := self.page()) is not None and task == self.chief():
      env[dashboard.VARIABLE] = '{}:{}'.format(*page)
    return env

  def page(self) -> tuple[str, int] | None:
    """Returns the host and port of the web page; None if there is none.

    Raises:
      ValueError: as for `ports_env`.
    """
    if self.dashboard_port is None:
      return None
    return dashboard.parse(
      self.dashboard_port,
      '--dashboard_port',
      is_secured=self.certificates is not None,
    )

  def security(self, task: spec_lib.Task) -> security_lib.Security | None:
    """Returns a task's credentials; None for a job without TLS."""
    if self.certificates is None:
      return None
    return security_lib.Security.of_task(
      self.certificates, task, _SECURE_DIRECTORY
    )

  def check_certificates(self) -> None:
    """Checks the credentials of all tasks, if they have any, on this machine.

    Raises:
      ValueError: those of a task are missing or wrong; see `Security.check`.
    """
    for task in self.tasks():
      if security := self.security(task):
        security.check(task)

  def secure_options(self) -> tuple[str, ...]:
    """Returns the options of `tfps.launch.task` for the tasks' certificates."""
    if self.certificates is None:
      return ()
    return (f'{_SECURE_DIRECTORY}={self.certificates}',)

  def security_env(self, task: spec_lib.Task) -> dict[str, str]:
    """Returns the variables that name a task's credentials, if it has any."""
    security = self.security(task)
    return security.env() if security else {}

  def visible_gpus(
    self, task: spec_lib.Task, *, place: int, env: Mapping[str, str]
  ) -> dict[str, str]:
    """Returns the variable that has a task see its GPUs, on a shared machine.

    Args:
      task: the task.
      place: how many workers come before it on its machine.
      env: the machine's environment, whose CUDA_VISIBLE_DEVICES, if it is set,
        names the GPUs that may be used; an empty one names none.

    Raises:
      ValueError: CUDA_VISIBLE_DEVICES names too few.
    """
    if self.gpus_per_worker is None:
      return {}
    if task.job != 'worker':
      return {_VISIBLE: _NO_GPUS}
    start, end = (self.gpus_per_worker * n for n in (place, place + 1))
    named = env.get(_VISIBLE)
    gpus = list(map(str, range(end)) if named is None else _named_gpus(named))
    if len(gpus) < end:
      raise ValueError(
        f'{_VISIBLE}={named} names {len(gpus)} GPUs, and workers up to {task} '
        f'need {end}: gpus_per_worker is {self.gpus_per_worker}.'
      )
    return {_VISIBLE: ','.join(gpus[start:end]) or _NO_GPUS}


def _named_gpus(text: str) -> Iterator[str]:
  """Yields the GPUs of CUDA_VISIBLE_DEVICES: those before a wrong one.

  Args:
    text: its value.
  """
  for name in map(str.strip, text.split(',')):
    if name in ('', _NO_GPUS, 'NoDevFiles'):
      return
    yield name


def cluster(
  addresses: Mapping[spec_lib.Task, str], source: str
) -> spec_lib.Cluster:
  """Returns the cluster of a job's tasks.

  Args:
    addresses: of all tasks, with that of an evaluator, which is in no cluster.
    source: what has made the cluster, for errors.
  """
  jobs: dict[str, list[str]] = {}
  for task, address in addresses.items():
    if task.job != EVALUATOR:
      jobs.setdefault(task.job, []).append(address)
  return spec_lib.Cluster(jobs, source=source)


def place(task: spec_lib.Task, hosts: Mapping[spec_lib.Task, object]) -> int:
  """Returns how many workers come before a task on its host.

  Args:
    task: the task.
    hosts: of all tasks.
  """
  return sum(
    each.job == 'worker' and each < task and hosts[each] == hosts[task]
    for each in hosts
  )
