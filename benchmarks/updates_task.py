"""Trains with one way to update or another, when it is told to.

The workers' steps take as long as they are asked to, between what they pull and
what they push: they sleep besides what they compute. So that they can, they are
in this process, each with a server of its own. An order is a way, what the
workers are like, and for how many seconds to train. What came of it is written
to the folder.

Usage: updates_task.py SIZE FOLDER
"""

from collections.abc import Callable
import dataclasses
import json
import pathlib
import sys
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks import orders
from benchmarks import problems
import tfps
from tfps import testing
from tfps import updates
from tfps.training import hooks

NUM_WORKERS = 4
NUM_PS = 2
STEP_SECS = 0.05
TIMES_SLOWER = 5
WAYS: dict[str, Callable[[], Any]] = {
  'Async()': updates.Async,
  'BoundedStaleness(16)': lambda: updates.BoundedStaleness(16),
  'BoundedStaleness(4)': lambda: updates.BoundedStaleness(4),
  'BoundedStaleness(1)': lambda: updates.BoundedStaleness(1),
  'Sync()': updates.Sync,
  'Sync(backup_workers=1)': lambda: updates.Sync(backup_workers=1),
}
ALIKE, ONE_SLOW = 'alike', 'one slow'

_STEPS_PER_EXECUTION = 4
_WARM_UP_SECS = 2.0
_ENDLESS = 1_000_000
_NUM_JUDGED = 20_000
_BATCH = 2000
_LOOK_SECS = 1.0
_TIMEOUT_SECS = 300.0


@dataclasses.dataclass(frozen=True)
class Found:
  """What came of a training.

  Attributes:
    way: to update.
    workers: what they were like.
    updates_per_sec: once it was warm.
    gradients_per_sec: likewise: those that were applied.
    mean_staleness: the updates between a gradient's pull and its push.
    late: how many gradients were dropped.
    curve: at each look, the seconds, the updates, and the held-out loss.
  """

  way: str
  workers: str
  updates_per_sec: float
  gradients_per_sec: float
  mean_staleness: float
  late: int
  curve: list[tuple[float, int, float]]


class EnoughError(Exception):
  """It has trained as long as it was asked to."""


class Watch:
  """Looks at a training now and then; a hook.

  Args:
    variables: of which it keeps the values.
    secs: after which to end.
  """

  def __init__(self, variables: list[Any], secs: float) -> None:
    self._variables = variables
    self._secs = secs
    self._began = 0.0
    self.seen: list[tuple[float, int]] = []
    self.looks: list[tuple[float, int, list[np.ndarray]]] = []

  def __call__(self, progress: hooks.Progress) -> None:
    if progress.moment != 'step':
      return
    now = time.perf_counter()
    self._began = self._began or now
    at = now - self._began
    self.seen.append((at, progress.step))
    if not self.looks or at >= self.looks[-1][0] + _LOOK_SECS:
      values = [variable.numpy() for variable in self._variables]
      self.looks.append((at, progress.step, values))
    if at > self._secs:
      raise EnoughError

  def steps_per_sec(self) -> float:
    """Those that were done once it was warm."""
    warm = [(at, step) for at, step in self.seen if at >= _WARM_UP_SECS]
    (begin, first), (end, last) = warm[0], warm[-1]
    return (last - first) / (end - begin)


def main(size: str, folder: str) -> None:
  problem = problems.flights(quick=size == 'quick')
  judged = problems.Data(
    {name: values[:_NUM_JUDGED] for name, values in problem.curve.x.items()},
    problem.curve.y[:_NUM_JUDGED],
  )
  problem = dataclasses.replace(problem, curve=judged)
  with testing.InProcessCluster(NUM_WORKERS, NUM_PS) as cluster:
    for order in orders.take(folder, 'chief:0'):
      way, workers, secs = order.split('|')
      found = train(problem, cluster.cluster, way, workers, float(secs))
      path = pathlib.Path(folder, 'found.json')
      path.write_text(json.dumps(dataclasses.asdict(found)))


def train(
  problem: problems.Problem,
  cluster: tfps.Cluster,
  way: str,
  workers: str,
  secs: float,
) -> Found:
  """Trains a new model for some time."""
  policy = WAYS[way]()
  strategy = tfps.ParameterServerStrategy(cluster, updates=policy)
  keras.utils.set_random_seed(1)
  with strategy.scope():
    model = problem.build()
    model.optimizer.build(model.trainable_variables)
  watch = Watch(model.trainable_variables, secs)
  with tfps.Coordinator(strategy, timeout_secs=_TIMEOUT_SECS) as coordinator:
    try:
      coordinator.train(
        _step(model),
        _dataset(problem, workers),
        steps=_ENDLESS,
        steps_per_execution=_STEPS_PER_EXECUTION,
        hooks=[watch],
      )
    except EnoughError:
      coordinator.join()
    report = strategy.updates_report()
    rate = watch.steps_per_sec()
    found = Found(
      way,
      workers,
      updates_per_sec=rate,
      gradients_per_sec=rate * _num_in_update(policy),
      mean_staleness=report.mean_staleness,
      late=report.late,
      curve=[],
    )
  judge = problem.build()
  return dataclasses.replace(
    found,
    curve=[
      (at, step, _loss(judge, values, problem.curve))
      for at, step, values in watch.looks
    ],
  )


def _num_in_update(policy: Any) -> int:
  """Of how many gradients an update is made."""
  if isinstance(policy, updates.Sync):
    return NUM_WORKERS - policy.backup_workers
  return 1


def _dataset(problem: problems.Problem, workers: str) -> Any:
  """Batches, and how long each worker is to take for one."""

  def dataset(context: tf.distribute.InputContext) -> tf.data.Dataset:
    is_slow = workers == ONE_SLOW and context.input_pipeline_id == 0
    secs = STEP_SECS * (TIMES_SLOWER if is_slow else 1)
    return problem.dataset(context).map(lambda *batch: (secs, batch))

  return dataset


def _step(model: Any) -> Callable[[Any], None]:
  def step(batch: Any) -> None:
    secs, (x, y) = batch
    with tf.GradientTape() as tape:
      loss = model.compute_loss(x=x, y=y, y_pred=model(x, training=True))
    variables = model.trainable_variables
    gradients = tape.gradient(loss, variables)
    with tf.control_dependencies([tf.numpy_function(_sleep, [secs, loss], [])]):
      gradients = tf.nest.map_structure(
        tf.identity, gradients, expand_composites=True
      )
    model.optimizer.apply(gradients, variables)

  return step


def _sleep(secs: np.float32, _: np.float32) -> None:
  time.sleep(float(secs))


def _loss(model: Any, values: list[np.ndarray], data: problems.Data) -> float:
  for variable, value in zip(model.trainable_variables, values, strict=True):
    variable.assign(value)
  found = model.evaluate(
    data.x, data.y, batch_size=_BATCH, verbose=0, return_dict=True
  )
  return float(found['loss'])


if __name__ == '__main__':
  main(*sys.argv[1:])
