"""The two ways to train the model on a cluster, as the chief and workers do."""

from collections.abc import Callable
import dataclasses
import pathlib
from typing import Any

import baseline
import data
import evaluation
import features
import keras
import model
import progress
import report
import tensorflow as tf

import tfps
from tfps import hooks as hooks_lib
from tfps.keras import callbacks

_NUM_SCORES = 8
_LINE_EVERY_SECS = 5.0
# A loop is traced in seconds. On a network, laid out steps would be faster.
_MAX_UNROLL = 1
_TIMEOUT_SECS = 300.0


@dataclasses.dataclass(frozen=True)
class Settings:
  """How to train.

  Attributes:
    epochs: how often to see each flight.
    batch_size: flights in one step.
    steps_per_execution: steps that a worker does in one call.
    max_examples: how many flights to use; None for all.
    seed: of initial values and shuffling.
    baseline_auc: of the logistic regression; None to train it, too.
    folder: where the chief leaves its results.
  """

  epochs: int
  batch_size: int
  steps_per_execution: int
  max_examples: int | None
  seed: int
  baseline_auc: float | None
  folder: pathlib.Path


class Training:
  """What both modes have in common.

  Args:
    mode: its name.
    settings: how to train.
  """

  def __init__(self, mode: str, settings: Settings) -> None:
    keras.utils.set_random_seed(settings.seed)
    self.settings = settings
    self.checkpoints = settings.folder / 'checkpoint'
    self._mode = mode
    flights = data.load()
    if settings.max_examples is not None:
      flights = flights.sample(settings.max_examples, random_state=1)
    self._split = features.split(flights)

  @property
  def steps(self) -> int:
    """How many steps all workers do together: a number of whole executions."""
    num_flights = self.settings.epochs * len(self._split.training)
    size = self.settings.steps_per_execution
    return max(size, num_flights // self.settings.batch_size // size * size)

  def new_model(self) -> keras.Model:
    """A new model."""
    num_numbers = self._split.training.numbers.shape[1]
    return model.build(self._split.sizes, num_numbers)

  def dataset(self, context: tf.distribute.InputContext) -> tf.data.Dataset:
    """One worker's endless batches of flights to learn from."""
    return self._split.training.dataset(
      context, batch_size=self.settings.batch_size, seed=self.settings.seed
    )

  def scoring(self, trained: keras.Model) -> evaluation.Evaluation:
    """Scores the model that is trained; to be made outside of its scope."""
    return evaluation.Evaluation(
      trained, self.new_model(), examples=self._split.held_out
    )

  def hooks(self, scores: evaluation.Evaluation) -> list[hooks_lib.Hook]:
    """A line now and then, and scores a few times over the training."""
    every_steps = max(1, self.steps // _NUM_SCORES)
    return [
      hooks_lib.LogProgress(every_secs=_LINE_EVERY_SECS, log=print),
      hooks_lib.Every(scores, steps=every_steps),
    ]

  def finish(
    self, strategy: Any, scores: evaluation.Evaluation, steps: int
  ) -> None:
    """Says how it went, and leaves figures and a picture."""
    baseline_auc = self.settings.baseline_auc
    if baseline_auc is None:
      baseline_auc = baseline.auc(self._split)
    outcome = report.Report(
      self._mode,
      steps,
      scores=scores.scores,
      baseline_auc=baseline_auc,
      num_bytes=strategy.placement_report().num_bytes,
    )
    outcome.save(self.settings.folder)
    print(
      f'{outcome}\n{self.settings.folder} has the checkpoint and report.png'
    )


def train_with_coordinator(cluster: tfps.Cluster, settings: Settings) -> None:
  """This process, the chief, has the workers execute the steps."""
  training = Training('coordinator', settings)
  strategy = tfps.ParameterServerStrategy(cluster)
  with strategy.scope():
    wide_and_deep = training.new_model()
    optimizer = model.optimizer()
    optimizer.build(wide_and_deep.trainable_variables)
  compute_loss = model.loss()

  def step(batch: Any) -> dict[str, tf.Tensor]:
    flights, late = batch
    variables = wide_and_deep.trainable_variables
    with tf.GradientTape() as tape:
      loss = compute_loss(late, wide_and_deep(flights, training=True))
    optimizer.apply(tape.gradient(loss, variables), variables)
    return {'loss': loss}

  scores = training.scoring(wide_and_deep)
  _describe(cluster, strategy)
  with tfps.Coordinator(strategy, timeout_secs=_TIMEOUT_SECS) as coordinator:
    result = coordinator.train(
      step,
      training.dataset,
      steps=training.steps,
      steps_per_execution=settings.steps_per_execution,
      max_unroll=_MAX_UNROLL,
      checkpoint=tf.train.Checkpoint(model=wide_and_deep, optimizer=optimizer),
      directory=training.checkpoints,
      hooks=training.hooks(scores),
    )
    training.finish(strategy, scores, result.step)


def train_between_graph(cluster: tfps.Cluster, settings: Settings) -> None:
  """This process, like each worker, trains by itself with Keras' own `fit`."""
  training = Training('between_graph', settings)
  strategy = tfps.BetweenGraphStrategy(cluster)
  with strategy.scope():
    wide_and_deep = training.new_model()
    wide_and_deep.compile(
      model.optimizer(),
      model.loss(),
      steps_per_execution=settings.steps_per_execution,
      jit_compile=False,
    )
    wide_and_deep.optimizer.build(wide_and_deep.trainable_variables)

  calls = [callbacks.StopAtStep(training.steps)]
  scores = training.scoring(wide_and_deep)
  if strategy.is_chief:
    _describe(cluster, strategy)
    calls.append(progress.Progress(training.hooks(scores), training.steps))
  wide_and_deep.fit(
    training.dataset(strategy.input_context()),
    steps_per_epoch=training.steps,
    callbacks=calls,
    shuffle=False,
    verbose=0,
  )
  strategy.barrier('trained', _TIMEOUT_SECS)
  if strategy.is_chief:
    training.checkpoints.mkdir(parents=True, exist_ok=True)
    wide_and_deep.save(training.checkpoints / 'wide_and_deep.keras')
    steps = int(wide_and_deep.optimizer.iterations)
    training.finish(strategy, scores, steps)


MODES: dict[str, Callable[[tfps.Cluster, Settings], None]] = {
  'coordinator': train_with_coordinator,
  'between_graph': train_between_graph,
}


def _describe(cluster: tfps.Cluster, strategy: Any) -> None:
  """Says who is in the cluster, and what is where."""
  if not cluster.jobs:
    print('one process, which has a ps within')
  for task in cluster.tasks():
    print(f'{task!s:<10}{cluster.address(task)}')
  print(strategy.placement_report())
