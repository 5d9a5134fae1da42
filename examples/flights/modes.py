"""The two ways to train the model on a cluster, as the chief and workers do.

Either way it is Keras' `fit`. With a coordinator the chief calls it, and has
the workers execute its steps; between graphs each worker calls it for itself.
"""

from collections.abc import Callable
import dataclasses
import pathlib
import shutil
import sys
from typing import Any

import baseline
import data
import features
import keras
import model
import progress
import report
from sklearn import metrics

import tfps

_TIMEOUT_SECS = 300.0
_PATIENCE = 1
_CUTS = 'recovery'


@dataclasses.dataclass(frozen=True)
class Settings:
  """How to train.

  Attributes:
    epochs: how often to see each flight at most.
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
    strategy: one of tfps', in whose scope the model is made.
    num_clients: how many processes train the model with a `fit` of their own.
  """

  def __init__(
    self, mode: str, settings: Settings, strategy: Any, *, num_clients: int
  ) -> None:
    keras.utils.set_random_seed(settings.seed)
    self._mode = mode
    self._settings = settings
    self._strategy = strategy
    self._num_clients = num_clients
    self._checkpoint = settings.folder / 'checkpoint' / 'wide_and_deep.keras'
    flights = data.load()
    if settings.max_examples is not None:
      flights = flights.sample(settings.max_examples, random_state=1)
    self._split = features.split(flights)
    with strategy.scope():
      self._model = model.build(
        self._split.sizes,
        self._split.training.numbers.shape[1],
        steps_per_execution=settings.steps_per_execution,
      )

  @property
  def steps_per_epoch(self) -> int:
    """The steps of one client: a number of whole executions."""
    batches = len(self._split.training) // self._settings.batch_size
    size = self._settings.steps_per_execution
    return max(size, batches // self._num_clients // size * size)

  def describe(self) -> None:
    """Says how many flights there are for what."""
    split = self._split
    training, validation, held_out = (
      len(part) for part in (split.training, split.validation, split.held_out)
    )
    print(
      f'{training + validation + held_out:,} flights: {training:,} for '
      f'training, {validation:,} for validation, {held_out:,} held out'
    )

  def fit(self, *callbacks: keras.callbacks.Callback, verbose: int) -> None:
    """Trains until the flights for validation say that it is enough."""
    self._model.fit(
      self._dataset,
      epochs=self._settings.epochs,
      steps_per_epoch=self.steps_per_epoch,
      validation_data=self._split.validation.batches(),
      callbacks=[
        keras.callbacks.EarlyStopping('val_loss', patience=_PATIENCE),
        *callbacks,
      ],
      shuffle=False,  # the datasets do
      verbose=verbose,
    )

  def fit_as_chief(self, *callbacks: keras.callbacks.Callback) -> list[Any]:
    """Also says how it gets on, and keeps the best model; the scores."""
    self._checkpoint.parent.mkdir(parents=True, exist_ok=True)
    steps = self.steps_per_epoch * self._settings.epochs * self._num_clients
    shown = progress.Progress(steps)
    best = keras.callbacks.ModelCheckpoint(
      self._checkpoint, monitor='val_loss', save_best_only=True
    )
    # A bar on a terminal; else a line for each epoch.
    verbose = 1 if sys.stdout.isatty() else 2
    self.fit(shown, best, *callbacks, verbose=verbose)
    return shown.scores

  def finish(self, scores: list[progress.Score]) -> None:
    """Judges the best model, and leaves figures and a picture."""
    self._model.load_weights(self._checkpoint)
    held_out = self._split.held_out
    logits = self._model.predict(held_out.batches(), verbose=0)
    baseline_auc = self._settings.baseline_auc
    if baseline_auc is None:
      baseline_auc = baseline.auc(self._split)
    outcome = report.Report(
      self._mode,
      scores[-1].step,
      scores=scores,
      auc=float(metrics.roc_auc_score(held_out.late, logits)),
      baseline_auc=baseline_auc,
      num_bytes=self._strategy.placement_report().num_bytes,
    )
    folder = self._settings.folder
    outcome.save(folder)
    print(f'{outcome}\n{folder} has the checkpoint and report.png')

  def _dataset(self, context: Any) -> Any:
    """One worker's endless batches of flights to learn from."""
    return self._split.training.dataset(
      context, batch_size=self._settings.batch_size, seed=self._settings.seed
    )


def train_with_coordinator(cluster: tfps.Cluster, settings: Settings) -> None:
  """This process, the chief, has the workers execute the steps."""
  strategy = tfps.ParameterServerStrategy(cluster, recovery=_recovery(settings))
  with tfps.Coordinator(strategy, timeout_secs=_TIMEOUT_SECS):
    training = Training('coordinator', settings, strategy, num_clients=1)
    _describe(cluster, strategy)
    training.describe()
    # After an interruption, the next run goes on from here.
    backup = keras.callbacks.BackupAndRestore(settings.folder / 'backup')
    scores = training.fit_as_chief(backup)
    training.finish(scores)
  _begin_anew_next_time(settings)


def train_between_graph(cluster: tfps.Cluster, settings: Settings) -> None:
  """This process, like each worker, trains by itself."""
  strategy = tfps.BetweenGraphStrategy(cluster, recovery=_recovery(settings))
  training = Training(
    'between_graph',
    settings,
    strategy,
    num_clients=strategy.input_context().num_input_pipelines,
  )
  scores: list[progress.Score] = []
  if strategy.is_chief:
    _describe(cluster, strategy)
    training.describe()
    scores = training.fit_as_chief()
  else:
    training.fit(verbose=0)
  strategy.barrier('trained', _TIMEOUT_SECS)
  if strategy.is_chief:
    training.finish(scores)
    strategy.close()
    _begin_anew_next_time(settings)


MODES: dict[str, Callable[[tfps.Cluster, Settings], None]] = {
  'coordinator': train_with_coordinator,
  'between_graph': train_between_graph,
}


def _recovery(settings: Settings) -> tfps.Recovery:
  """Any task may be killed; those that the launcher restarts go on."""
  return tfps.Recovery(settings.folder / _CUTS, every_secs=5.0)


def _begin_anew_next_time(settings: Settings) -> None:
  shutil.rmtree(settings.folder / _CUTS)


def _describe(cluster: tfps.Cluster, strategy: Any) -> None:
  """Says who is in the cluster, and what is where."""
  if not cluster.jobs:
    print('one process, which has a ps within')
  for task in cluster.tasks():
    print(f'{task!s:<10}{cluster.address(task)}')
  print(strategy.placement_report())
