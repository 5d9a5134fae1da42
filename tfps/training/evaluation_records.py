"""Records of evaluations: JSON lines, summaries, and the best checkpoint."""

from collections.abc import Callable
from collections.abc import Mapping
import dataclasses
import importlib.util
import json
import math
import os
import pathlib
from typing import Any

from absl import logging
import tensorflow as tf

from tfps import errors
from tfps.training import checkpoint_files

_LINES = 'evaluations.jsonl'
_BEST = 'best'
_BEST_NOTE = 'best.json'
_STATE = 'checkpoint'
_MODES = ('min', 'max')

Score = Callable[[Mapping[str, float]], float]


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """Result of the evaluation of a checkpoint.

  Attributes:
    checkpoint: path of the checkpoint, as `tf.train.Checkpoint.restore` or
      `load_weights` takes it. It may have been deleted since.
    step: the step of training at which it was saved.
    metrics: the values of `model.evaluate`, by name.
    time: when the evaluation ended, in seconds since the epoch.
    secs: how many seconds it took.
    modified: when the checkpoint was written, in seconds since the epoch.
    is_best: whether it was the best of all until then, by the evaluator's
      criterion.
  """

  checkpoint: str
  step: int
  metrics: dict[str, float]
  time: float
  secs: float
  modified: float
  is_best: bool = False

  @property
  def key(self) -> tuple[str, float]:
    """The key of the checkpoint, a `checkpoint_files.CheckpointFile`."""
    return pathlib.Path(self.checkpoint).name, self.modified

  def to_json(self) -> str:
    """Returns a line of JSON, in which values that are no numbers are null."""
    metrics = {
      name: value if math.isfinite(value) else None
      for name, value in self.metrics.items()
    }
    return json.dumps({**dataclasses.asdict(self), 'metrics': metrics})

  @classmethod
  def from_json(cls, line: str) -> 'Evaluation':
    """Returns what `to_json` has written.

    Args:
      line: a line of JSON.

    Raises:
      ValueError: the line is cut off or has other fields.
    """
    try:
      found = dict(json.loads(line))
      metrics = {
        name: math.nan if value is None else float(value)
        for name, value in found['metrics'].items()
      }
      return cls(**{**found, 'metrics': metrics})
    except (KeyError, TypeError, AttributeError) as error:
      raise ValueError(f'{line!r} is no evaluation') from error


@dataclasses.dataclass(frozen=True)
class Criterion:
  """Criterion by which one evaluation is better than another.

  Attributes:
    best: name of a metric, or a function of all metrics.
    mode: 'min' or 'max'.

  Raises:
    ValueError: the mode is another.
  """

  best: str | Score
  mode: str

  def __post_init__(self) -> None:
    if self.mode not in _MODES:
      raise ValueError(
        f"evaluate_checkpoints: mode is {self.mode!r}. Give 'min' or 'max'."
      )

  def score(self, metrics: Mapping[str, float]) -> float:
    """Returns a number that is higher for what is better.

    Args:
      metrics: of an evaluation.

    Raises:
      ValueError: they lack the metric.
    """
    if isinstance(self.best, str) and self.best not in metrics:
      raise ValueError(
        f'evaluate_checkpoints: best is {self.best!r}, and the metrics are '
        f'{", ".join(metrics)}. Give one of these.'
      )
    if isinstance(self.best, str):
      value = metrics[self.best]
    else:
      value = float(self.best(metrics))
    return value if self.mode == 'max' else -value


class Records:
  """Evaluations so far, in a directory, with those before a restart.

  Args:
    directory: for the JSON lines, the summaries and the best checkpoint;
      created if missing.
    criterion: of the best checkpoint; None to keep none.

  Attributes:
    evaluations: all evaluations, oldest first.
    draft: a folder for a checkpoint that is evaluated.

  Raises:
    errors.CheckpointError: the directory cannot be written.
  """

  def __init__(
    self, directory: pathlib.Path, criterion: Criterion | None
  ) -> None:
    self.evaluations: list[Evaluation] = []
    self.draft = directory / 'draft'
    self._path = directory / _LINES
    self._best = directory / _BEST
    self._criterion = criterion
    try:
      directory.mkdir(parents=True, exist_ok=True)
      self._read()
    except OSError as error:
      raise errors.CheckpointError(
        f'{directory}, where evaluations are kept, cannot be written: {error}. '
        'Give another one as output_dir.'
      ) from error
    self._writer: Any = None
    if importlib.util.find_spec('tensorboard') is not None:
      self._writer = tf.summary.create_file_writer(os.fspath(directory))
    else:
      logging.warning(
        'Summaries are not written, which need tensorboard: pip install '
        '"tfps[tensorboard]".'
      )

  def add(
    self, evaluation: Evaluation, held: checkpoint_files.CheckpointFile
  ) -> None:
    """Keeps an evaluation, and its checkpoint if it is the best.

    Args:
      evaluation: the evaluation.
      held: its checkpoint, in the folder `draft`, from which it may be moved.

    Raises:
      ValueError: it lacks the metric of the criterion.
      OSError: the directory cannot be written.
    """
    if self._is_best(evaluation):
      evaluation = dataclasses.replace(evaluation, is_best=True)
      self._keep(evaluation, held)
    self._summarize(evaluation)
    # Comes last: what has no line is evaluated once more after a restart.
    with self._path.open('a', encoding='utf-8') as file:
      file.write(evaluation.to_json() + '\n')
      file.flush()
      os.fsync(file.fileno())
    self.evaluations.append(evaluation)

  def _is_best(self, evaluation: Evaluation) -> bool:
    if self._criterion is None:
      return False
    score = self._criterion.score(evaluation.metrics)
    kept = [e for e in self.evaluations if e.is_best]
    if math.isnan(score):
      return False
    return not kept or score > self._criterion.score(kept[-1].metrics)

  def _keep(
    self, evaluation: Evaluation, held: checkpoint_files.CheckpointFile
  ) -> None:
    """Replaces the best checkpoint by another, of which one is always whole."""
    self._best.mkdir(exist_ok=True)
    new = {path.name for path in held.files()} | {_BEST_NOTE}
    checkpoint_files.move(held, self._best)
    path = self._best / held.path.name
    note = dataclasses.replace(evaluation, checkpoint=os.fspath(path))
    self._write_best(_BEST_NOTE, note.to_json())
    if not held.is_keras:
      new.add(_STATE)
      # As `tf.train.latest_checkpoint` and `CheckpointManager` read it.
      name = json.dumps(path.name)
      self._write_best(_STATE, f'model_checkpoint_path: {name}')
    for old in self._best.iterdir():
      if old.name not in new:
        old.unlink()

  def _write_best(self, name: str, text: str) -> None:
    """Writes a file beside the best checkpoint, whole or not at all."""
    draft = self.draft / name
    draft.write_text(f'{text}\n', encoding='utf-8')
    draft.replace(self._best / name)

  def _summarize(self, evaluation: Evaluation) -> None:
    if self._writer is None:
      return
    with self._writer.as_default():
      for name, value in evaluation.metrics.items():
        tf.summary.scalar(name, value, step=evaluation.step)
    self._writer.flush()

  def _read(self) -> None:
    """Reads the lines of earlier runs; the last one may be cut off."""
    if not self._path.exists():
      return
    text = self._path.read_text(encoding='utf-8')
    for line in text.splitlines():
      try:
        self.evaluations.append(Evaluation.from_json(line))
      except ValueError as error:
        logging.warning('%s: a line is ignored: %s.', self._path, error)
    if text and not text.endswith('\n'):
      with self._path.open('a', encoding='utf-8') as file:
        file.write('\n')
