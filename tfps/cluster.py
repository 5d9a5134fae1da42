"""Who is in a cluster: frozen facts, checked once, valid everywhere.

This module never imports TensorFlow before a caller asks for one of its types.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import json
import types
from typing import Any

JOBS = ('chief', 'ps', 'worker')


@dataclasses.dataclass(frozen=True, order=True)
class Task:
  """One process of a cluster, written `ps:0`."""

  job: str
  index: int

  def __str__(self) -> str:
    return f'{self.job}:{self.index}'


@dataclasses.dataclass(frozen=True)
class Cluster:
  """The jobs of a cluster, the addresses of their tasks, and which one is us.

  `Cluster({'ps': ['h0:4000'], 'worker': ['h1:4000', 'h2:4000']})`

  Attributes:
    jobs: job name -> task index -> 'host:port'. A sequence of addresses is
      taken as tasks 0, 1, ...; a mapping may leave indices out.
    task: the task that this process runs; None for an onlooker.
    source: where the facts came from, for error messages.
  """

  jobs: Mapping[str, Mapping[int, str]]
  task: Task | None = None
  source: str = 'Cluster(...)'

  def __post_init__(self) -> None:
    frozen = {
      job: types.MappingProxyType(dict(_by_index(addresses)))
      for job, addresses in sorted(self.jobs.items())
    }
    object.__setattr__(self, 'jobs', types.MappingProxyType(frozen))

  @property
  def num_workers(self) -> int:
    return len(self.jobs.get('worker', ()))

  @property
  def num_ps(self) -> int:
    return len(self.jobs.get('ps', ()))

  def tasks(self, job: str | None = None) -> tuple[Task, ...]:
    """All tasks, or those of one job, in the order of their indices."""
    jobs = self.jobs if job is None else [job]
    return tuple(Task(j, i) for j in jobs for i in sorted(self.jobs.get(j, ())))

  def address(self, task: Task) -> str:
    """'host:port' of a task."""
    return self.jobs[task.job][task.index]

  def with_task(self, task: Task | None) -> 'Cluster':
    """The same cluster seen from another task."""
    return dataclasses.replace(self, task=task)

  def tf_config(self) -> str:
    """The `TF_CONFIG` value that gives this cluster back."""
    config: dict[str, Any] = {
      'cluster': {
        job: [by_index[i] for i in sorted(by_index)]
        for job, by_index in self.jobs.items()
      }
    }
    if self.task is not None:
      config['task'] = {'type': self.task.job, 'index': self.task.index}
    return json.dumps(config)

  def spec(self) -> Any:
    """The cluster as a `tf.train.ClusterSpec`."""
    import tensorflow as tf

    return tf.train.ClusterSpec({j: dict(a) for j, a in self.jobs.items()})

  def resolver(self) -> Any:
    """The cluster as a `tf.distribute.cluster_resolver.ClusterResolver`."""
    import tensorflow as tf

    task = self.task or Task('chief', 0)
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
      self.spec(), task_type=task.job, task_id=task.index, rpc_layer='grpc'
    )


def _by_index(
  addresses: Mapping[int, str] | Sequence[str],
) -> list[tuple[int, str]]:
  if isinstance(addresses, Mapping):
    return sorted((int(i), address) for i, address in addresses.items())
  return list(enumerate(addresses))
