"""Immutable specification of a cluster and its tasks, checked when it is made.

TensorFlow is imported only when a caller asks for one of its types.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import functools
import json
import types
from typing import Any

from tfps.cluster import flags
from tfps.cluster import slurm
from tfps.cluster import tf_config as tf_config_lib
from tfps.cluster import validation

JOBS = validation.JOBS


@dataclasses.dataclass(frozen=True, order=True)
class Task:
  """One process of a cluster, written `ps:0`."""

  job: str
  index: int

  def __str__(self) -> str:
    return f'{self.job}:{self.index}'

  @classmethod
  def parse(cls, name: str) -> 'Task':
    """Returns the task of a name such as 'ps:0', as `str` gives it.

    Args:
      name: the job and the index of the task.

    Raises:
      ValueError: the name is not that of a task.
    """
    job, _, index = name.partition(':')
    if not (job and index.isdecimal()):
      raise ValueError(
        f'The task {name!r} is not a job and an index. Write it as in ps:0.'
      )
    return cls(job, int(index))


# Runs the program, if the cluster has a coordinator.
CHIEF = Task('chief', 0)


@dataclasses.dataclass(frozen=True, init=False)
class Cluster:
  """Jobs of a cluster, addresses of their tasks, and this process' task.

  `Cluster({'ps': ['h0:4000'], 'worker': ['h1:4000', 'h2:4000']})`

  A cluster has the jobs ps and worker and may have one chief. The task may
  also be chief:0 without the job chief, or an evaluator, which is never listed.
  A cluster without jobs is one local task.

  Attributes:
    jobs: job name -> task index -> 'host:port'. A sequence of addresses is
      taken as tasks 0, 1, ...; a mapping may leave out indices, even all of
      them, that this process need not know. Port 0 is any free port.
    task: the task of this process; None if it is not part of the cluster.
    source: where the specification came from, for error messages.
  """

  jobs: Mapping[str, Mapping[int, str]]
  task: Task | None = None
  source: str = dataclasses.field(default='Cluster(...)', compare=False)

  def __init__(
    self,
    jobs: Mapping[str, Mapping[int, str] | Sequence[str]],
    task: Task | None = None,
    *,
    source: str = 'Cluster(...)',
  ) -> None:
    object.__setattr__(self, 'jobs', _freeze(jobs, source))
    object.__setattr__(self, 'task', task)
    object.__setattr__(self, 'source', source)
    _check_jobs(self)
    _check_addresses(self)
    _check_task(self)

  def __hash__(self) -> int:
    return hash(self.tf_config())

  def __reduce__(self) -> tuple[Any, ...]:
    jobs = {job: dict(addresses) for job, addresses in self.jobs.items()}
    make = functools.partial(type(self), source=self.source)
    return make, (jobs, self.task)

  @classmethod
  def local(cls) -> 'Cluster':
    """Returns the cluster of one local task."""
    return cls({}, CHIEF, source='no flags, TF_CONFIG or Slurm')

  @classmethod
  def from_flags(cls, flag_values: Any) -> 'Cluster':
    """Reads a cluster from parsed flags that `tfps.define_flags` defined.

    Args:
      flag_values: an `absl.flags.FlagValues`.

    Raises:
      ValueError: a flag is missing or wrong.
    """
    jobs, task, source = flags.parse(flag_values)
    return cls(jobs, Task(*task), source=source)

  @classmethod
  def from_tf_config(cls, env: Mapping[str, str]) -> 'Cluster':
    """Reads a cluster from the environment variable `TF_CONFIG`.

    Args:
      env: the environment.

    Raises:
      ValueError: the variable is missing or wrong.
    """
    jobs, task = tf_config_lib.parse(env.get('TF_CONFIG', ''))
    return cls(jobs, Task(*task) if task else None, source='TF_CONFIG')

  @classmethod
  def from_slurm(
    cls, env: Mapping[str, str], jobs: Mapping[str, int]
  ) -> 'Cluster':
    """Reads a cluster from the environment of a Slurm step.

    Args:
      env: the step's environment.
      jobs: job -> number of its tasks, in the order of their process ids, as
        in {'ps': 2, 'worker': 4}.

    Raises:
      ValueError: a variable is missing or wrong, or the jobs do not fit.
    """
    addresses, task = slurm.parse(env, jobs)
    source = f'Slurm with jobs {dict(jobs)}'
    return cls(addresses, Task(*task), source=source)

  @property
  def num_workers(self) -> int:
    """The number of workers, without the chief."""
    return len(self.jobs.get('worker', ()))

  def check_has_ps(self) -> None:
    """Checks that there are ps, which most strategies need.

    Raises:
      ValueError: there are none.
    """
    if self.jobs and not self.num_ps:
      raise ValueError(
        f'{_missing(self, "ps")} Without ps, workers train by '
        'tfps.AllReduceStrategy.'
      )

  @property
  def num_ps(self) -> int:
    """The number of ps."""
    return len(self.jobs.get('ps', ()))

  def tasks(self, job: str | None = None) -> tuple[Task, ...]:
    """Returns all tasks, or those of one job, in the order of indices.

    Args:
      job: the name of a job; None for all.
    """
    jobs = self.jobs if job is None else [job]
    return tuple(Task(j, i) for j in jobs for i in sorted(self.jobs.get(j, ())))

  def address(self, task: Task) -> str:
    """Returns the 'host:port' of a task.

    Args:
      task: a task of the cluster.

    Raises:
      KeyError: the cluster does not list the task.
    """
    return self.jobs[task.job][task.index]

  def with_address(self, task: Task, address: str) -> 'Cluster':
    """Returns the same cluster with another address of a task, or a new task.

    Args:
      task: the task.
      address: where its server listens.
    """
    tasks = {**self.jobs[task.job], task.index: address}
    return dataclasses.replace(self, jobs={**self.jobs, task.job: tasks})

  def with_task(self, task: Task | None) -> 'Cluster':
    """Returns the same cluster for a process that is another task.

    Args:
      task: that task; None for a process that is no task.

    Raises:
      ValueError: the cluster does not have the task.
    """
    return dataclasses.replace(self, task=task)

  def tf_config(self) -> str:
    """Returns the `TF_CONFIG` value of this cluster."""
    config: dict[str, Any] = {
      'cluster': {
        job: _plain(addresses) for job, addresses in self.jobs.items()
      }
    }
    if self.task is not None:
      config['task'] = {'type': self.task.job, 'index': self.task.index}
    return json.dumps(config)

  def spec(self) -> Any:
    """Returns the cluster as a `tf.train.ClusterSpec`."""
    import tensorflow as tf

    return tf.train.ClusterSpec({j: dict(a) for j, a in self.jobs.items() if a})

  def resolver(self) -> Any:
    """Returns a `tf.distribute.cluster_resolver.ClusterResolver`."""
    import tensorflow as tf

    # TensorFlow rejects a task that the cluster does not list.
    task = self.task if self.task in self.tasks() else None
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
      self.spec(),
      task_type=task and task.job,
      task_id=task and task.index,
      rpc_layer='grpc',
    )


def _plain(addresses: Mapping[int, str]) -> list[str] | dict[str, str]:
  if addresses and list(addresses) == list(range(len(addresses))):
    return list(addresses.values())
  return {str(i): address for i, address in addresses.items()}


def _freeze(jobs: Any, source: str) -> Mapping[str, Mapping[int, str]]:
  if not isinstance(jobs, Mapping):
    raise ValueError(
      f'{source}: the jobs are {jobs!r}. '
      "Give a mapping such as {'ps': ['h0:2222'], 'worker': ['h1:2222']}."
    )
  frozen = {
    validation.job_in_cluster(job, source): types.MappingProxyType(
      _by_index(job, addresses, source)
    )
    for job, addresses in jobs.items()
  }
  return types.MappingProxyType(dict(sorted(frozen.items())))


def _by_index(job: str, addresses: Any, source: str) -> dict[int, str]:
  where = f'{source}: job {job}'
  if isinstance(addresses, Mapping):
    indexed = {validation.index(i, where): a for i, a in addresses.items()}
  elif isinstance(addresses, Sequence) and not isinstance(addresses, str):
    indexed = dict(enumerate(addresses))
    if not indexed:
      raise ValueError(f'{where} has no tasks. Give their addresses.')
  else:
    raise ValueError(
      f'{where} has the addresses {addresses!r}. Give a list of host:port.'
    )
  for i, address in sorted(indexed.items()):
    validation.address(address, f'{source}: {job}:{i}')
  return dict(sorted(indexed.items()))


def _missing(cluster: Cluster, job: str) -> str:
  return (
    f'{cluster.source}: the job {job} is missing beside '
    f'{", ".join(cluster.jobs)}. Give the address of at least one {job}.'
  )


def _check_jobs(cluster: Cluster) -> None:
  if cluster.jobs and 'worker' not in cluster.jobs:
    raise ValueError(_missing(cluster, 'worker'))
  chiefs = list(cluster.jobs.get('chief', ()))
  if chiefs not in ([], [0]):
    raise ValueError(
      f'{cluster.source}: the job chief has the task indices {chiefs}. '
      'Give one chief, whose index is 0.'
    )


def _check_addresses(cluster: Cluster) -> None:
  owners: dict[tuple[str, int], Task] = {}
  for task in cluster.tasks():
    host, _, port = cluster.address(task).rpartition(':')
    key = host.lower(), int(port)
    if int(port) and key in owners:
      raise ValueError(
        f'{cluster.source}: {owners[key]} and {task} have the same address, '
        f'{cluster.address(task)!r}. Give each task its own.'
      )
    owners[key] = task


def _check_task(cluster: Cluster) -> None:
  task = cluster.task
  if task is None:
    return
  where = f'{cluster.source}: the task'
  validation.job_of_task(task.job, where)
  validation.index(task.index, where)
  known = cluster.jobs.get(task.job, {})
  outside = task.job == 'evaluator' or (task == CHIEF and not known)
  if not outside and task.index not in known:
    raise ValueError(
      f'{cluster.source}: task {task} is not in the cluster, which has '
      f'{_summary(task.job, known)}. Give one of its tasks, or add its address.'
    )


def _summary(job: str, addresses: Mapping[int, str]) -> str:
  indices = list(addresses)
  if indices == list(range(len(indices))):
    return f'{len(indices)} {job} task{"" if len(indices) == 1 else "s"}'
  return f'the {job} indices {", ".join(map(str, indices))}'
