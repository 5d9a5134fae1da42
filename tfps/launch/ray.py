"""Runs a job in a Ray cluster: each task is an actor.

```python
import tfps.launch.ray

tfps.launch.ray.run(('train.py', '--steps=1000'), num_workers=2, num_ps=1)
```

The caller is any driver: a script, a Ray Job, or a trial of Ray Tune. The nodes
need what the program needs, with this package.
"""

import argparse
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import dataclasses
import os
import pathlib
import pickle
import re
import secrets
import signal
import sys
from typing import Any

from tfps import errors
from tfps._utils import option_types
from tfps.cluster import spec as spec_lib
from tfps.launch import ends as ends_lib
from tfps.launch import function
from tfps.launch import job as job_lib
from tfps.launch import over_ssh
from tfps.launch import ray_actor
from tfps.launch import ray_connection
from tfps.launch import ray_placement
from tfps.launch import ray_tasks
from tfps.launch import task_process

_PICKLER = 'ray.cloudpickle'
_STRATEGIES = ('PACK', 'SPREAD', 'STRICT_PACK', 'STRICT_SPREAD')
# Variables that Ray sets on each node.
_OF_RAY = re.compile('CUDA_VISIBLE_DEVICES|OMP_NUM_THREADS|RAY_.*')
_THREADS = 4  # of an actor: one runs the program, others stop it


@dataclasses.dataclass(frozen=True)
class _Settings:
  """Options of this engine."""

  cpus_per_task: float = 1
  strategy: str = 'SPREAD'
  timeout_secs: float = 20.0
  evaluator_secs: float = 600.0
  silent_secs: float = 10.0
  servers: tuple[str, ...] = ('ps',)


def run(
  program: Sequence[str] | Callable[[], object],
  *,
  num_workers: int = 1,
  num_ps: int = 1,
  num_chiefs: int = 1,
  num_evaluators: int = 0,
  env: Mapping[str, str] | None = None,
  gpus_per_worker: int | None = None,
  cpus_per_task: float = 1,
  max_restarts: int = 3,
  grace_secs: float = 10.0,
  log_dir: str | os.PathLike[str] | None = None,
  secure_directory: str | os.PathLike[str] | None = None,
  strategy: str = 'SPREAD',
  timeout_secs: float = 20.0,
  evaluator_secs: float = 600.0,
) -> Any:
  """Runs a program as all tasks of a cluster, and waits for their end.

  Without a connection to a Ray cluster, it makes one as `ray.init()` does.

  Args:
    program: a file or '-m' and a module, and arguments, as in
      `('train.py', '--steps=100')`; or a function that each task calls.
    num_workers: number of workers.
    num_ps: number of ps.
    num_chiefs: 0 for between-graph programs whose chief is worker:0.
    num_evaluators: 1 for a task that evaluates checkpoints.
    env: variables that are added to each task's environment.
    gpus_per_worker: GPUs that each worker reserves and sees; other tasks see
      none.
    cpus_per_task: CPUs that each task reserves; it may use more.
    max_restarts: how often each task's program is started again after a status
      of 128 or more, and how often its actor after the loss of its process or
      node.
    grace_secs: seconds that a task has to exit after SIGTERM.
    log_dir: a folder, on each node, for the output of its tasks, as ps-0.log;
      by default only Ray keeps it.
    secure_directory: a folder, at the same path on all machines, with the
      certificates that `tfps certs` has made for the tasks, which are then
      connected by mutual TLS.
    strategy: of the placement group, as Ray calls it.
    timeout_secs: how long to wait for the cluster to have room for all tasks.
    evaluator_secs: how long the evaluator may go on once training is done.

  Returns:
    What the function returned on the chief; None for a program.

  Raises:
    ValueError: an argument or a certificate is wrong.
    ImportError: Ray is not installed.
    errors.DeadlineError: the cluster has no room for the tasks.
    errors.TaskFailedError: a task failed.
  """
  is_function = callable(program)
  job = job_lib.Job(
    ('-m', function.MODULE) if callable(program) else _words(program),
    num_workers=num_workers,
    num_ps=num_ps,
    num_chiefs=num_chiefs,
    num_evaluators=num_evaluators,
    env=dict(env or {}),
    gpus_per_worker=gpus_per_worker,
    max_restarts=max_restarts,
    grace_secs=grace_secs,
    log_dir=pathlib.Path(log_dir).absolute() if log_dir else None,
    certificates=(
      pathlib.Path(secure_directory).absolute() if secure_directory else None
    ),
  )
  job.check_certificates()
  settings = _Settings(cpus_per_task, strategy, timeout_secs, evaluator_secs)
  _check(job, settings)
  ray = ray_connection.connected()
  call = (
    function.Call.of(program, (), pickler=_PICKLER)
    if callable(program)
    else None
  )
  result = _run(ray, job, settings, call)
  return pickle.loads(result) if is_function and result else None


def bundles(
  *,
  num_workers: int = 1,
  num_ps: int = 1,
  num_chiefs: int = 1,
  num_evaluators: int = 0,
  gpus_per_worker: int | None = None,
  cpus_per_task: float = 1,
) -> list[dict[str, float]]:
  """Returns what `run` reserves, for a trial of Ray Tune that calls it.

  A trial with these bundles behind its own has its tasks in them:
  `tune.PlacementGroupFactory([{'CPU': 1}, *bundles(num_workers=2)])`.

  Args:
    num_workers: as for `run`.
    num_ps: as for `run`.
    num_chiefs: as for `run`.
    num_evaluators: as for `run`.
    gpus_per_worker: as for `run`.
    cpus_per_task: as for `run`.
  """
  job = job_lib.Job(
    ('-m', function.MODULE),
    num_workers=num_workers,
    num_ps=num_ps,
    num_chiefs=num_chiefs,
    num_evaluators=num_evaluators,
    gpus_per_worker=gpus_per_worker,
  )
  return ray_placement.bundles(job, cpus_per_task)


def add_options(parser: argparse.ArgumentParser) -> None:
  """Adds this engine's options."""
  group = parser.add_argument_group('ray')
  group.add_argument(
    '--cpus_per_task',
    type=float,
    default=1.0,
    metavar='N',
    help='CPUs of the Ray cluster that each task reserves (default: 1)',
  )
  group.add_argument(
    '--timeout_secs',
    type=option_types.seconds,
    default=20.0,
    metavar='SECS',
    help='how long to wait for the cluster to have room for all tasks, such as '
    'for nodes that are added on demand (default: 20)',
  )


def start(job: job_lib.Job, options: argparse.Namespace) -> int:
  """Runs a job's tasks in a Ray cluster to their end.

  Args:
    job: the job.
    options: the launcher's, see `command`.

  Returns:
    The exit status, as `local.start` does.

  Raises:
    ValueError: an option is wrong.
  """
  if options.preload:
    raise ValueError('--preload forks tasks on this machine; leave it out.')
  settings = _Settings(
    options.cpus_per_task,
    timeout_secs=options.timeout_secs,
    evaluator_secs=options.evaluator_secs,
    silent_secs=options.silent_secs,
    servers=('ps', 'worker') if options.chief_ends_job else ('ps',),
  )
  _check(job, settings)
  if options.dry_run:
    print('\n'.join(_plan(job, settings)))
    return 0
  absolute = job.log_dir and job.log_dir.absolute()
  env = {**_passed_on(os.environ), **job.env}
  job = dataclasses.replace(job, env=env, log_dir=absolute)
  try:
    ray = ray_connection.connected()
    with _interrupting_signals() as heard:
      try:
        _run(ray, job, settings, None)
      except KeyboardInterrupt:
        number = signal.Signals(heard[0] if heard else signal.SIGINT)
        _say(f'Stopped all tasks on {number.name}.')
        return 128 + number
  except errors.TaskFailedError as error:
    _say(str(error))
    return error.status
  except (errors.Error, ImportError) as error:
    _say(str(error))
    return 1
  return 0


def _passed_on(env: Mapping[str, str]) -> dict[str, str]:
  """Returns the part of this environment that is not a node's or Ray's."""
  return {
    name: value
    for name, value in over_ssh.passed_on(env, ()).items()
    if not _OF_RAY.fullmatch(name)
  }


def _run(
  ray: Any,
  job: job_lib.Job,
  settings: _Settings,
  call: function.Call | None,
) -> bytes | None:
  """Runs a job; returns the pickled result of its function, if it has one."""
  tasks = job.tasks()
  room = ray_placement.reserve(
    ray,
    ray_placement.bundles(job, settings.cpus_per_task),
    strategy=settings.strategy,
    timeout_secs=settings.timeout_secs,
  )
  try:
    actors = _actors(ray, job, settings, call, room)
    _say(f'Starting {", ".join(map(str, tasks))} in the Ray cluster.')
    ends = ends_lib.Ends.of(
      job, evaluator_secs=settings.evaluator_secs, servers=settings.servers
    )
    # An enclosure has doors to the addresses that it begins with.
    may_move = job.certificates is None
    return ray_tasks.RayTasks(ray, actors, ends, _say, may_move=may_move).run()
  finally:
    if room.is_own:
      ray.util.remove_placement_group(room.group)


def _actors(
  ray: Any,
  job: job_lib.Job,
  settings: _Settings,
  call: function.Call | None,
  room: ray_placement.Room,
) -> dict[spec_lib.Task, Any]:
  strategies = ray.util.scheduling_strategies
  actor = ray.remote(ray_actor.TaskActor)
  wanted = ray_placement.bundles(job, settings.cpus_per_task)
  prefix = f'tfps-{secrets.token_hex(4)}'
  folders = _folders(ray)
  actors = {}
  for task, bundle, index in zip(
    job.tasks(), wanted, room.indices, strict=True
  ):
    order = task_process.Order(
      job, task, call, folders, silent_secs=settings.silent_secs
    )
    actors[task] = actor.options(
      name=f'{prefix}-{task.job}-{task.index}',
      num_cpus=bundle['CPU'],
      num_gpus=bundle.get('GPU', 0),
      max_restarts=job.max_restarts,
      max_concurrency=_THREADS,
      scheduling_strategy=strategies.PlacementGroupSchedulingStrategy(
        room.group, placement_group_bundle_index=index
      ),
    ).remote(order)
  return actors


def _folders(ray: Any) -> tuple[str, ...]:
  """Returns the tasks' working directory: what Ray sends, or this one."""
  sent = ray.get_runtime_context().runtime_env.get('working_dir')
  return ('.',) if sent else (os.getcwd(),)


def _words(program: Sequence[str]) -> tuple[str, ...]:
  """Returns a program and its arguments.

  Raises:
    ValueError: it is none, or does not exist.
  """
  words = () if isinstance(program, str) else tuple(map(os.fspath, program))
  if not words:
    raise ValueError(
      f'program={program!r} is no program with arguments. Give a sequence such '
      "as ('train.py', '--steps=100'), or a function."
    )
  if words[0] != '-m' and not os.path.exists(words[0]):
    raise ValueError(
      f'program: {words[0]!r} does not exist in {os.getcwd()}. Give its path.'
    )
  return words


def _check(job: job_lib.Job, settings: _Settings) -> None:
  if settings.cpus_per_task < 0:
    raise ValueError(f'cpus_per_task is {settings.cpus_per_task}, less than 0.')
  if settings.strategy not in _STRATEGIES:
    raise ValueError(
      f'strategy is {settings.strategy!r}, not one of {", ".join(_STRATEGIES)}.'
    )


def _plan(job: job_lib.Job, settings: _Settings) -> Iterator[str]:
  wanted = ray_placement.bundles(job, settings.cpus_per_task)
  for task, bundle in zip(job.tasks(), wanted, strict=True):
    reserved = ' '.join(f'{name}={bundle[name]:g}' for name in bundle)
    yield f'{task} {reserved} {" ".join(job.command("python"))}'


@contextlib.contextmanager
def _interrupting_signals() -> Iterator[list[int]]:
  """Interrupts this thread on SIGTERM and SIGHUP, too, and lists them."""
  heard: list[int] = []

  def interrupt(number: int, frame: object) -> None:
    heard.append(number)
    raise KeyboardInterrupt  # Ray would lose the status of a SystemExit

  numbers = (signal.SIGTERM, signal.SIGHUP)
  before = {number: signal.signal(number, interrupt) for number in numbers}
  try:
    yield heard
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)


def _say(text: str) -> None:
  print(f'[launch] {text}', file=sys.stderr, flush=True)
