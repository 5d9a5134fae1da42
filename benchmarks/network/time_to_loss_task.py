"""The chief of the benchmark of time to a loss: learns by each variant.

Prints a line of JSON for each variant. Time begins when a first stretch of
steps is done, in which functions are traced and data travels, and stands still
while this process looks how good the model is.

Usage: time_to_loss_task.py PROBLEM SIZE
"""

import json
import sys
import time
from typing import Any

import keras
import tensorflow as tf

from benchmarks import problems
from benchmarks.network import goals
from benchmarks.network import variants
import tfps
from tfps.input import per_worker

STOCK = 'stock, custom loop'
STEPS_PER_EXECUTION = 8
_TIMEOUT_SECS = 300.0
_BATCH = 1000
_QUICK_VARIANTS = (STOCK, 'no codec')


class Judge:
  """Looks how good a model is, by a copy of it in this process alone.

  To be made once this process has connected to a cluster: TensorFlow forgets
  what was there before.

  Args:
    goal: what it is to reach.
    problem: what it learns.

  Attributes:
    scores: seconds, steps and loss at each look.
  """

  def __init__(self, goal: goals.Goal, problem: problems.Problem) -> None:
    self._goal = goal
    self._problem = problem
    self._copy = problem.build()
    self._secs = 0.0
    self._since: float | None = None
    self.scores: list[tuple[float, int, float]] = []

  def go(self) -> None:
    """Lets time go on."""
    self._since = time.perf_counter()

  def look(self, model: Any) -> None:
    """Stops time; looks."""
    if self.scores and self._since is not None:
      self._secs += time.perf_counter() - self._since
    self._take(model)
    curve = self._problem.curve
    loss = self._evaluate(curve)['loss']
    steps = self._goal.steps_per_look * (1 + len(self.scores))
    self.scores.append((self._secs, steps, loss))

  def last(self) -> float:
    """The metric of the model that was looked at last."""
    return self._evaluate(self._problem.held_out)[self._goal.metric]

  def _take(self, model: Any) -> None:
    """Takes the model's values."""
    for mine, theirs in zip(_state(self._copy), _state(model), strict=True):
      mine.assign(keras.ops.convert_to_numpy(theirs))

  def _evaluate(self, data: problems.Data) -> dict[str, float]:
    found: dict[str, float] = self._copy.evaluate(
      data.x, data.y, batch_size=_BATCH, verbose=0, return_dict=True
    )
    return found


def main(name: str, size: str) -> None:
  cluster = tfps.resolve_cluster()
  quick = size == 'quick'
  goal = goals.of(name, quick=quick)
  problem = problems.PROBLEMS[name](quick=quick)
  ours = variants.learning(goal.local_steps)
  for variant in _QUICK_VARIANTS if quick else (STOCK, *ours):
    if variant == STOCK:
      judge = _by_stock(goal, problem, cluster)
    else:
      judge = _by_fit(goal, problem, cluster, ours[variant])
    found = {'variant': variant, 'scores': judge.scores, 'metric': judge.last()}
    print(json.dumps(found), flush=True)


def _by_fit(
  goal: goals.Goal,
  problem: problems.Problem,
  cluster: tfps.Cluster,
  variant: variants.Variant,
) -> Judge:
  """Keras' `fit` under our strategy."""
  strategy = tfps.ParameterServerStrategy(
    cluster, wire=variant.wire, updates=variant.updates
  )
  judge = Judge(goal, problem)
  # Not closed, which would end the servers: others train after this.
  tfps.Coordinator(strategy, timeout_secs=_TIMEOUT_SECS)
  model = _model(problem, strategy)
  model.fit(
    problem.dataset,
    epochs=1 + goal.num_looks,
    steps_per_epoch=goal.steps_per_look,
    shuffle=False,  # the dataset does
    callbacks=[
      keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: judge.go(),
        on_epoch_end=lambda epoch, logs: judge.look(model),
      )
    ],
    verbose=0,
  )
  return judge


def _by_stock(
  goal: goals.Goal, problem: problems.Problem, cluster: tfps.Cluster
) -> Judge:
  """The same model in a loop of one's own, as it has no `fit` of Keras 3."""
  strategy = tf.distribute.ParameterServerStrategy(cluster.resolver())
  coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
  judge, model = Judge(goal, problem), _model(problem, strategy)
  with strategy.scope():
    model.optimizer.build(model.trainable_variables)

  def step(batch: Any) -> None:
    x, y = batch
    with tf.GradientTape() as tape:
      loss = model.compute_loss(x=x, y=y, y_pred=model(x, training=True))
    variables = model.trainable_variables
    gradients = tape.gradient(loss, variables)
    model.optimizer.apply_gradients(zip(gradients, variables, strict=True))

  @tf.function
  def execute(iterator: tf.data.Iterator) -> None:
    for _ in range(STEPS_PER_EXECUTION):
      strategy.run(step, args=(next(iterator),))

  # TensorFlow's own way tells no worker which one it is.
  iterators, _ = per_worker.iterators(coordinator, problem.dataset)
  for _ in range(1 + goal.num_looks):
    judge.go()
    for _ in range(goal.steps_per_look // STEPS_PER_EXECUTION):
      coordinator.schedule(execute, args=(iterators,))
    coordinator.join()
    judge.look(model)
  return judge


def _model(problem: problems.Problem, strategy: Any) -> Any:
  keras.utils.set_random_seed(1)
  with strategy.scope():
    model = problem.build()
    model.steps_per_execution = STEPS_PER_EXECUTION
  return model


def _state(model: Any) -> list[Any]:
  """What makes its predictions."""
  return [*model.trainable_variables, *model.non_trainable_variables]


if __name__ == '__main__':
  main(*sys.argv[1:])
