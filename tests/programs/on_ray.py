"""A driver that launches functions in a Ray cluster, by its first argument.

None of the functions needs TensorFlow.
"""

import json
import os
import sys
import threading
import time

from tfps import errors
import tfps.launch.ray


def _task() -> str:
  task = json.loads(os.environ['TF_CONFIG'])['task']
  return f'{task["type"]}:{task["index"]}'


class _Found:
  """What a task has found; its class is the script's own."""

  def __init__(self, **facts: object) -> None:
    self.facts = facts


def result() -> None:
  def function() -> _Found:
    jobs = json.loads(os.environ['TF_CONFIG'])['cluster']
    print('TASK', _task(), 'pid', os.getpid(), flush=True)
    return _Found(
      task=_task(), jobs={j: len(jobs[j]) for j in jobs}, mark=os.environ['A']
    )

  found = tfps.launch.ray.run(
    function, num_workers=2, num_ps=2, env={'A': 'b'}, cpus_per_task=0.5
  )
  print('RESULT', json.dumps(found.facts))


def raises() -> None:
  def function() -> None:
    if _task() == 'worker:1':
      raise KeyError('no such flight')
    print('TASK', _task(), 'pid', os.getpid(), flush=True)
    time.sleep(600)

  try:
    tfps.launch.ray.run(function, num_workers=2)
  except errors.TaskFailedError as error:
    print('ERROR', error.task, error.status, error)


def cannot_be_sent() -> None:
  lock = threading.Lock()
  try:
    tfps.launch.ray.run(lambda: lock)
  except ValueError as error:
    print('ERROR', error)


def cannot_be_returned() -> None:
  try:
    tfps.launch.ray.run(lambda: threading.Lock())
  except errors.TaskFailedError as error:
    print('ERROR', error)


def endless() -> None:
  def function() -> None:
    print('TASK', _task(), 'pid', os.getpid(), flush=True)
    time.sleep(600)

  tfps.launch.ray.run(function, log_dir=sys.argv[2])


def trials() -> None:
  """Trials in a cluster of 8 CPUs, too few for a second group of bundles."""
  from ray import tune

  def train(config: dict[str, int]) -> None:
    def function() -> int:
      return config['x'] ** 2

    tune.report({'score': tfps.launch.ray.run(function, cpus_per_task=1.3)})

  bundles = tfps.launch.ray.bundles(cpus_per_task=1.3)
  group = tune.PlacementGroupFactory([{'CPU': 0.5}, *bundles])
  tuner = tune.Tuner(
    tune.with_resources(train, group),
    param_space={'x': tune.grid_search([2, 3])},
    run_config=tune.RunConfig(storage_path=sys.argv[2]),
  )
  found = tuner.fit()
  print('SCORES', sorted(each.metrics['score'] for each in found))


def many_trials() -> None:
  """Trials whose tasks are not in the trial's own placement group."""
  from ray import tune

  def train() -> int:
    return tfps.launch.ray.run(_task, cpus_per_task=0.5)

  tuner = tune.Tuner(
    tune.with_resources(lambda _: tune.report({'task': train()}), {'cpu': 0.5}),
    run_config=tune.RunConfig(storage_path=sys.argv[2]),
  )
  print('TASKS', [each.metrics['task'] for each in tuner.fit()])


if __name__ == '__main__':
  globals()[sys.argv[1]]()
