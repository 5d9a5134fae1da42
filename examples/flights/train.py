"""Learns which flights leave late, on a cluster; every task runs this file.

    python examples/flights/train.py
    python -m tfps.launch --num_workers=2 --num_ps=2 examples/flights/train.py

The chief prints what happens and leaves a checkpoint, `result.json` and
`report.png` in `--output_dir`.
"""

from collections.abc import Callable
import dataclasses
import pathlib
from typing import Any

from absl import app
from absl import flags
from absl import logging
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
from tfps import hooks
from tfps.keras import callbacks

_MODE = flags.DEFINE_enum(
  'mode',
  None,
  ['coordinator', 'between_graph'],
  'Whether one chief has the workers execute steps, or each worker trains by '
  'itself. By default coordinator if there is a chief, else between_graph.',
)
_EPOCHS = flags.DEFINE_integer('epochs', 4, 'How often to see each flight.')
_BATCH_SIZE = flags.DEFINE_integer('batch_size', 512, 'Flights in one step.')
_STEPS_PER_EXECUTION = flags.DEFINE_integer(
  'steps_per_execution', 20, 'Steps that a worker does in one call.'
)
_MAX_EXAMPLES = flags.DEFINE_integer(
  'max_examples', None, 'How many flights to use; by default all.'
)
_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir', 'runs/flights', 'Where the chief leaves its results.'
)
_SEED = flags.DEFINE_integer('seed', 1, 'Of initial values and shuffling.')
_BASELINE_AUC = flags.DEFINE_float(
  'baseline_auc', None, "The baseline's AUC, to save computing it again."
)

_NUM_SCORES = 8
_MAX_UNROLL = 5  # This model is traced slowly: its optimizer is long.
_TIMEOUT_SECS = 300.0

tfps.define_flags()


@dataclasses.dataclass(frozen=True)
class Task:
  """What to learn, and how long.

  Attributes:
    split: the flights.
    folder: where to leave the results.
    steps: how many steps all workers do together.
  """

  split: features.Split
  folder: pathlib.Path
  steps: int

  def model(self) -> keras.Model:
    """A new model."""
    num_numbers = self.split.training.numbers.shape[1]
    return model.build(self.split.sizes, num_numbers)

  def dataset(self, context: tf.distribute.InputContext) -> tf.data.Dataset:
    """One worker's endless batches of flights to learn from."""
    return self.split.training.dataset(
      context, batch_size=_BATCH_SIZE.value, seed=_SEED.value
    )

  def evaluation(self, trained: keras.Model) -> evaluation.Evaluation:
    """Scores the model that is trained; to be made outside of its scope."""
    return evaluation.Evaluation(
      trained, self.model(), examples=self.split.held_out
    )

  def now_and_then(self, hook: hooks.Hook) -> hooks.Every:
    """The hook, called a few times over the training."""
    return hooks.Every(hook, steps=max(1, self.steps // _NUM_SCORES))


def train_with_coordinator(cluster: tfps.Cluster) -> None:
  """The chief has the workers execute steps that it wrote."""
  task = _task()
  strategy = tfps.ParameterServerStrategy(cluster)
  with strategy.scope():
    wide_and_deep = task.model()
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

  scores = task.evaluation(wide_and_deep)
  with tfps.Coordinator(strategy, timeout_secs=_TIMEOUT_SECS) as coordinator:
    _describe(cluster, strategy)
    trained = coordinator.train(
      step,
      task.dataset,
      steps=task.steps,
      steps_per_execution=_STEPS_PER_EXECUTION.value,
      max_unroll=_MAX_UNROLL,
      checkpoint=tf.train.Checkpoint(model=wide_and_deep, optimizer=optimizer),
      directory=task.folder / 'checkpoint',
      hooks=[task.now_and_then(scores)],
      log_every_secs=5,
    )
  _report(task, strategy, scores, 'coordinator', trained.steps)


def train_between_graph(cluster: tfps.Cluster) -> None:
  """Each worker trains by itself, with Keras' own `fit`."""
  task = _task()
  strategy = tfps.BetweenGraphStrategy(cluster)
  with strategy.scope():
    wide_and_deep = task.model()
    wide_and_deep.compile(
      model.optimizer(),
      model.loss(),
      steps_per_execution=_STEPS_PER_EXECUTION.value,
      jit_compile=False,
    )
    wide_and_deep.optimizer.build(wide_and_deep.trainable_variables)

  scores = task.evaluation(wide_and_deep)
  calls = [callbacks.StopAtStep(task.steps)]
  if strategy.is_chief:
    _describe(cluster, strategy)
    log = hooks.LogProgress(every_secs=5)
    calls.append(
      progress.Progress([log, task.now_and_then(scores)], task.steps)
    )
  wide_and_deep.fit(
    task.dataset(strategy.input_context()),
    steps_per_epoch=task.steps,
    callbacks=calls,
    verbose=0,
  )
  strategy.barrier('trained', _TIMEOUT_SECS)
  if strategy.is_chief:
    (task.folder / 'checkpoint').mkdir(parents=True, exist_ok=True)
    wide_and_deep.save(task.folder / 'checkpoint' / 'model.keras')
    steps = int(wide_and_deep.optimizer.iterations)
    _report(task, strategy, scores, 'between_graph', steps)


_MODES: dict[str, Callable[[tfps.Cluster], None]] = {
  'coordinator': train_with_coordinator,
  'between_graph': train_between_graph,
}


def _task() -> Task:
  keras.utils.set_random_seed(_SEED.value)
  flights = data.load()
  if _MAX_EXAMPLES.value is not None:
    flights = flights.sample(_MAX_EXAMPLES.value, random_state=_SEED.value)
  split = features.split(flights)
  steps = _EPOCHS.value * len(split.training) // _BATCH_SIZE.value
  # Whole executions, as each size of them is traced for itself.
  steps -= steps % _STEPS_PER_EXECUTION.value
  return Task(split, pathlib.Path(_OUTPUT_DIR.value), max(1, steps))


def _describe(cluster: tfps.Cluster, strategy: Any) -> None:
  for each in cluster.tasks():
    print(f'{each!s:<10}{cluster.address(each)}')
  print(strategy.placement_report(), flush=True)


def _report(
  task: Task,
  strategy: Any,
  scores: evaluation.Evaluation,
  mode: str,
  steps: int,
) -> None:
  baseline_auc = _BASELINE_AUC.value
  if baseline_auc is None:
    baseline_auc = baseline.auc(task.split)
  outcome = report.Report(
    mode,
    steps,
    scores.scores[-1].secs,
    scores.scores,
    baseline_auc,
    strategy.placement_report().num_bytes,
  )
  outcome.save(task.folder)
  print(f'{outcome}\n{task.folder}: checkpoint, result.json, report.png')


def _mode(cluster: tfps.Cluster) -> str:
  has_chief = 'chief' in (cluster.task.job, *cluster.jobs)
  return _MODE.value or ('coordinator' if has_chief else 'between_graph')


def main(_: list[str]) -> int | None:
  cluster = tfps.resolve_cluster()
  logging.set_verbosity(logging.INFO)
  tf.get_logger().setLevel('WARNING')
  mode = _mode(cluster)
  serves = {'coordinator': ('ps', 'worker'), 'between_graph': ('ps',)}
  if cluster.task.job in serves[mode]:
    return tfps.serve(cluster)
  return _MODES[mode](cluster)


if __name__ == '__main__':
  app.run(main)
