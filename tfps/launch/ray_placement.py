"""Room for a job's tasks in a Ray cluster: a placement group with bundles."""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from typing import Any

from tfps import errors
from tfps.launch import job as job_lib

Bundle = dict[str, float]


@dataclasses.dataclass(frozen=True)
class Room:
  """Bundles of a placement group, one for each task.

  Attributes:
    group: the placement group.
    indices: the index of each task's bundle.
    is_own: whether the group is the job's own, and ends with it.
  """

  group: Any
  indices: tuple[int, ...]
  is_own: bool


def bundles(job: job_lib.Job, cpus_per_task: float) -> list[Bundle]:
  """Returns what each task of a job reserves, in the order of the tasks.

  Args:
    job: the job; its workers reserve GPUs if `gpus_per_worker` says so.
    cpus_per_task: how many CPUs each task reserves.
  """
  gpus = job.gpus_per_worker or 0
  return [
    {
      'CPU': cpus_per_task,
      **({'GPU': gpus} if gpus and task.job == 'worker' else {}),
    }
    for task in job.tasks()
  ]


def reserve(
  ray: Any,
  wanted: Sequence[Bundle],
  *,
  strategy: str,
  timeout_secs: float,
) -> Room:
  """Reserves room, within the caller's placement group if that has it.

  A trial of Ray Tune has such a group; its bundle 0 is for the trial itself.

  Args:
    ray: the module, connected to a cluster.
    wanted: what each task needs.
    strategy: of a new placement group, such as SPREAD.
    timeout_secs: how long to wait for a new one.

  Raises:
    errors.DeadlineError: there is no room; the message says what is there.
  """
  current = ray.util.get_current_placement_group()
  if current is not None:
    indices = fit(wanted, current.bundle_specs)
    if indices is not None:
      return Room(current, indices, is_own=False)
  group = ray.util.placement_group(list(wanted), strategy=strategy)
  try:
    if not group.wait(timeout_secs):
      raise errors.DeadlineError(
        f'{lack(wanted, ray.nodes(), ray.available_resources())} That was so '
        f'for {timeout_secs:g} seconds. Add nodes, end other jobs, reserve '
        'less by num_workers, num_ps, cpus_per_task or gpus_per_worker, or '
        'wait longer by timeout_secs.'
      )
  except BaseException:
    ray.util.remove_placement_group(group)
    raise
  return Room(group, tuple(range(len(wanted))), is_own=True)


def fit(
  wanted: Sequence[Bundle], given: Sequence[Mapping[str, float]]
) -> tuple[int, ...] | None:
  """Returns the index of a bundle for each task; None if they do not fit.

  Args:
    wanted: what each task needs.
    given: the bundles of a group, of which the first is in use.
  """
  left = list(range(1, len(given)))
  found = {}
  # The largest first, so that none of the others takes its only bundle.
  order = sorted(range(len(wanted)), key=lambda i: -sum(wanted[i].values()))
  for i in order:
    fitting = [j for j in left if _holds(given[j], wanted[i])]
    if not fitting:
      return None
    found[i] = min(fitting, key=lambda j: sum(given[j].values()))
    left.remove(found[i])
  return tuple(found[i] for i in range(len(wanted)))


def lack(
  wanted: Sequence[Bundle],
  nodes: Sequence[Mapping[str, Any]],
  free: Mapping[str, float],
) -> str:
  """Returns a sentence about what was asked for, and what a cluster has.

  Args:
    wanted: what each task needs.
    nodes: the cluster's nodes, as `ray.nodes` lists them.
    free: what is free in all.
  """
  alive = [node for node in nodes if node['Alive']]
  each = ', '.join(
    f'{node["NodeManagerAddress"]} with {_amounts(node["Resources"])}'
    for node in alive
  )
  total = {name: sum(b.get(name, 0) for b in wanted) for name in ('CPU', 'GPU')}
  number = f'{len(alive)} node{"" if len(alive) == 1 else "s"}'
  return (
    f'The Ray cluster has no room for {len(wanted)} tasks, which reserve '
    f'{_amounts(total, zeros=False)} in all: it has {number} ({each}), where '
    f'{_amounts(free)} are free.'
  )


def _holds(given: Mapping[str, float], wanted: Bundle) -> bool:
  return all(given.get(name, 0) >= amount for name, amount in wanted.items())


def _amounts(resources: Mapping[str, float], *, zeros: bool = True) -> str:
  found = {name: resources.get(name, 0) for name in ('CPU', 'GPU')}
  return ' and '.join(
    f'{amount:g} {name}s' for name, amount in found.items() if zeros or amount
  )
