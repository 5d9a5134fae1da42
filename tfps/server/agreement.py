"""Whether two tasks hold the same idea of their cluster."""

import socket

from tfps import errors
from tfps.cluster import spec as spec_lib


def check(mine: spec_lib.Cluster, theirs: spec_lib.Cluster) -> None:
  """Compares what both clusters know; each must have a task.

  A task may know its own address by another name, or only its port. It may
  also know no other task of a job, as in TFJob's sparse form. And a worker of
  which the other does not know may have come later, as may others that it
  knows. None of these is a disagreement; another address or, otherwise, another
  number of tasks is.

  Raises:
    errors.ClusterMismatchError: names both sides' values.
  """
  for job in sorted(set(mine.jobs) & set(theirs.jobs)):
    for task in _tasks_to_compare(job, mine, theirs):
      if not _agree(task, mine, theirs):
        raise errors.ClusterMismatchError(
          f'{mine.task} and {theirs.task} disagree on {task}: '
          f'{_say(task, mine)}; {_say(task, theirs)}. '
          'Start all tasks with the same cluster.'
        )


def _tasks_to_compare(
  job: str, mine: spec_lib.Cluster, theirs: spec_lib.Cluster
) -> list[spec_lib.Task]:
  for one, other in ((mine, theirs), (theirs, mine)):
    if job == 'worker' and _has_come_later(one.task, other):
      return list(other.tasks(job))
  return sorted({*mine.tasks(job), *theirs.tasks(job)})


def _has_come_later(
  task: spec_lib.Task | None, cluster: spec_lib.Cluster
) -> bool:
  is_worker = task is not None and task.job == 'worker'
  return is_worker and task not in cluster.tasks('worker')


def _agree(
  task: spec_lib.Task,
  mine: spec_lib.Cluster,
  theirs: spec_lib.Cluster,
) -> bool:
  if not (_knows_about(task, mine) and _knows_about(task, theirs)):
    return True
  if task in (mine.task, theirs.task):
    return _is_known(task, mine) and _is_known(task, theirs)
  return (
    _is_known(task, mine)
    and _is_known(task, theirs)
    and _same_address(mine.address(task), theirs.address(task))
  )


def _knows_about(task: spec_lib.Task, cluster: spec_lib.Cluster) -> bool:
  """Whether the cluster lists its job's tasks, beyond its own task."""
  return any(known != cluster.task for known in cluster.tasks(task.job))


def _is_known(task: spec_lib.Task, cluster: spec_lib.Cluster) -> bool:
  return task in cluster.tasks(task.job)


def _same_address(one: str, other: str) -> bool:
  """Whether two addresses mean the same port of the same host."""
  if one == other:
    return True
  return bool(_endpoints(one) & _endpoints(other))


def _endpoints(address: str) -> set[tuple[str, str]]:
  host, _, port = address.rpartition(':')
  try:
    found = socket.getaddrinfo(host.strip('[]'), None)
  except socket.gaierror:
    return {(host, port)}
  return {(str(sockaddr[0]), port) for *_, sockaddr in found}


def _say(task: spec_lib.Task, cluster: spec_lib.Cluster) -> str:
  if _is_known(task, cluster):
    return f'{cluster.task} has it at {cluster.address(task)}'
  known = ', '.join(cluster.jobs[task.job].values())
  return f'{cluster.task} has the {task.job} tasks {known}'
