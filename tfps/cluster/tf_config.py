"""Parser of the environment variable `TF_CONFIG`."""

import json
from typing import Any

from absl import logging

from tfps.cluster import validation

_SOURCE = 'TF_CONFIG'
_CHIEF, _MASTER = 'chief', 'master'
_EXAMPLE = (
  '{"cluster": {"ps": ["h0:2222"], "worker": ["h1:2222"]}, '
  '"task": {"type": "worker", "index": 0}}'
)


def parse(text: str) -> tuple[dict[str, Any], tuple[str, int] | None]:
  """Reads a cluster from JSON.

  Kubeflow's TFJob with dynamic workers writes `sparseCluster`, in which a
  worker sees every ps but no other worker, and a ps only itself.

  Schedulers write more than a cluster has, which their users cannot change.
  The job master is the chief. An evaluator, jobs of other names, lists without
  tasks and a chief without an address are left out, and the log tells of it.

  Args:
    text: the value of `TF_CONFIG`.

  Returns:
    The addresses of each job, and this process' job and index, if given.

  Raises:
    ValueError: the value is malformed.
  """
  config = _object(_load(text), 'the value')
  task = _task(_object(config.get('task', {}), '"task"'))
  if 'sparseCluster' in config:
    sparse = _object(config['sparseCluster'], '"sparseCluster"')
    return _jobs(_own_ps(sparse, task)), task
  cluster = _object(config.get('cluster', {}), '"cluster"')
  return _jobs(_without_others(cluster)), task


def _load(text: str) -> Any:
  try:
    return json.loads(text, object_pairs_hook=_without_repeats)
  except json.JSONDecodeError as error:
    raise ValueError(
      f'{_SOURCE}: {_short(text)} is not JSON: {error}. '
      f'Write it as in {_EXAMPLE}.'
    ) from error


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  names = [name for name, _ in pairs]
  for name in names:
    if names.count(name) > 1:
      raise ValueError(
        f'{_SOURCE}: the name "{name}" occurs twice in one object, and JSON '
        'would drop the first. Write it once.'
      )
  return dict(pairs)


def _object(value: Any, name: str) -> dict[str, Any]:
  if not isinstance(value, dict):
    raise ValueError(
      f'{_SOURCE}: {name} is {_short(json.dumps(value))}, not a JSON object. '
      f'Write it as in {_EXAMPLE}.'
    )
  return value


def _task(task: dict[str, Any]) -> tuple[str, int] | None:
  if not task:
    return None
  for name in ('type', 'index'):
    if name not in task:
      raise ValueError(
        f'{_SOURCE}: "task" is {json.dumps(task)}, without "{name}". '
        f'Write it as in {_EXAMPLE}.'
      )
  name = _CHIEF if task['type'] == _MASTER else task['type']
  job = validation.job_of_task(name, f'{_SOURCE}: "task"')
  return job, validation.index(task['index'], f'{_SOURCE}: "task"')


def _without_others(cluster: dict[str, Any]) -> dict[str, Any]:
  """Returns the jobs that a cluster has; logs what it does with the others."""
  if _MASTER in cluster and _CHIEF in cluster:
    raise ValueError(
      f'{_SOURCE}: the cluster lists the jobs chief and master, which is the '
      'old name of chief. Remove one of them.'
    )
  found, notes = {}, []
  for name, addresses in cluster.items():
    job = name
    if name == _MASTER:
      job = _CHIEF
      notes.append('the job master is taken for the chief')
    if job not in validation.JOBS:
      notes.append(f'the job {job} is no part of the cluster')
    elif addresses == []:
      notes.append(f'the job {job} has no tasks')
    elif job == _CHIEF and addresses in ('', [''], {'0': ''}):
      notes.append('the chief has no address, and needs none')
    else:
      found[job] = addresses
  if notes:
    logging.info('%s: %s.', _SOURCE, '; '.join(notes))
  return found


def _jobs(cluster: dict[str, Any]) -> dict[str, Any]:
  return {
    job: _indexed(job, addresses) if isinstance(addresses, dict) else addresses
    for job, addresses in cluster.items()
  }


def _indexed(job: str, addresses: dict[str, Any]) -> dict[int, Any]:
  where = f'{_SOURCE}: job {job}'
  return {
    validation.index(i, where): address for i, address in addresses.items()
  }


def _own_ps(
  cluster: dict[str, Any], task: tuple[str, int] | None
) -> dict[str, Any]:
  """Corrects the index of a ps, whose own address TFJob lists as ps:0."""
  ps = cluster.get('ps')
  if task and task[0] == 'ps' and isinstance(ps, list) and len(ps) == 1:
    return {**cluster, 'ps': {str(task[1]): ps[0]}}
  return cluster


def _short(text: str) -> str:
  return text if len(text) <= 80 else f'{text[:77]}...'
