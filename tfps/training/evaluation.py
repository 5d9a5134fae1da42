"""Evaluator beside training, which follows its checkpoints.

```
if cluster.task.job == 'evaluator':
  return tfps.evaluate_checkpoints(build_model, held_out, '/data/run1')
```

It is one process without a cluster, and ends when training has ended.
"""

from collections.abc import Callable
from collections.abc import Sequence
import contextlib
import os
import pathlib
import time
from typing import Any

from absl import logging

from tfps.cluster import spec as spec_lib
from tfps.monitor import endpoint
from tfps.monitor import families
from tfps.monitor import registry as registry_lib
from tfps.training import checkpoint_files
from tfps.training import checkpoint_follower as follower_lib
from tfps.training import checkpoint_loading
from tfps.training import evaluation_records as records_lib

_EVALUATOR = spec_lib.Task('evaluator', 0)


def evaluate_checkpoints(
  model_fn: Callable[[], Any],
  dataset: Any,
  directory: str | os.PathLike[str],
  *,
  steps: int | None = None,
  callbacks: Sequence[Any] = (),
  every_checkpoint: bool = False,
  max_evaluations: int | None = None,
  until_step: int | None = None,
  timeout_secs: float | None = 3600.0,
  best: str | records_lib.Score | None = None,
  mode: str = 'min',
  output_dir: str | os.PathLike[str] | None = None,
) -> tuple[records_lib.Evaluation, ...]:
  """Evaluates the checkpoints of training that runs elsewhere, as they come.

  Checkpoints are those of `tf.train.CheckpointManager` and of `train`, and the
  files of `keras.callbacks.ModelCheckpoint` and `BackupAndRestore`, whatever
  the strategy and the shards of its variables. Each is evaluated once, on this
  process' own devices. One that is deleted before it was read is skipped; one
  that cannot be read is reported and skipped, too.

  The output directory has `evaluations.jsonl` with a line for each evaluation,
  summaries for TensorBoard, and the folder `best`. After a restart, what has a
  line is not evaluated again.

  It ends when a limit below is reached, or training has ended and its last
  checkpoint is evaluated: `train` and the callback `tfps.keras.MarkTrainingEnd`
  leave a marker beside the checkpoints, which counts after half a minute, and
  `tfps launch` tells its evaluator.

  Args:
    model_fn: makes the compiled Keras model, as the training program does.
    dataset: what `model.evaluate` takes as `x`, and can be read many times.
    directory: of the checkpoints, in a file system of this host. It may not
      exist yet.
    steps: number of batches of an evaluation; None for all.
    callbacks: of `model.evaluate`. `model.optimizer.iterations` is the step of
      the checkpoint meanwhile.
    every_checkpoint: whether to evaluate all checkpoints that are there, oldest
      first. Otherwise those that came during an evaluation are skipped, but for
      the newest.
    max_evaluations: ends after so many, those before a restart included.
    until_step: ends after a checkpoint of this step, or a later one.
    timeout_secs: how long to wait for a checkpoint. That no other one comes is
      taken for the end of training, with a warning; None waits without limit.
    best: the metric, or a function of all metrics, by whose value the best
      checkpoint is kept in the folder `best`. By default none is kept.
    mode: whether the best value is the 'min' or the 'max'.
    output_dir: by default the folder `evaluation` within the directory. Give
      another one for `BackupAndRestore`, which deletes its directory in the
      end.

  Returns:
    All evaluations, those before a restart included.

  Raises:
    errors.DeadlineError: no checkpoint came in time.
    errors.CheckpointError: a checkpoint does not fit the model, or training has
      ended and left none that can be read, or the output directory cannot be
      written.
    ValueError: an argument is wrong.
  """
  for name, value in (
    ('steps', steps),
    ('max_evaluations', max_evaluations),
    ('until_step', until_step),
    ('timeout_secs', timeout_secs),
  ):
    if value is not None and not value > 0:
      raise ValueError(
        f'evaluate_checkpoints: {name} is {value!r}. Give a number above 0.'
      )
  endpoint.begin(_EVALUATOR, is_chief=True)
  registry = registry_lib.of_process()
  criterion = None if best is None else records_lib.Criterion(best, mode)
  folder = pathlib.Path(directory)
  records = records_lib.Records(
    pathlib.Path(output_dir or folder / 'evaluation'), criterion
  )
  follower = follower_lib.CheckpointFollower(
    folder,
    done=[evaluation.key for evaluation in records.evaluations],
    every_checkpoint=every_checkpoint,
    timeout_secs=timeout_secs,
  )
  evaluator = _Evaluator(model_fn, dataset, steps, callbacks)

  def is_over() -> bool:
    steps_done = [evaluation.step for evaluation in records.evaluations]
    return bool(
      (max_evaluations and len(steps_done) >= max_evaluations)
      or (until_step and max(steps_done, default=0) >= until_step)
    )

  while not is_over() and (checkpoint := follower.next()) is not None:
    evaluator.build()  # its errors are not those of a checkpoint
    with contextlib.ExitStack() as stack:
      try:
        held = stack.enter_context(
          checkpoint_files.held(checkpoint, records.draft)
        )
        step = evaluator.load(held)
      except checkpoint_loading.DAMAGE as error:
        follower.note_failure(checkpoint, error)
        continue
      records.add(evaluator.evaluate(checkpoint, step), held)
      registry.add(families.EVALUATIONS)
      registry.set(families.EVALUATED_STEP, step)
    follower.note_done(checkpoint)
  return tuple(records.evaluations)


class _Evaluator:
  """Evaluates checkpoints with one model, which it makes for the first one.

  Args:
    model_fn: makes the compiled model.
    dataset: its input.
    steps: number of batches; None for all.
    callbacks: of `model.evaluate`.
  """

  def __init__(
    self,
    model_fn: Callable[[], Any],
    dataset: Any,
    steps: int | None,
    callbacks: Sequence[Any],
  ) -> None:
    self._model_fn = model_fn
    self._dataset = dataset
    self._steps = steps
    self._callbacks = callbacks

    self._model: Any = None

  def build(self) -> None:
    """Makes the model and its variables, once.

    Raises:
      ValueError: `model_fn` has returned something else.
    """
    if self._model is not None:
      return
    model = self._model_fn()
    if not hasattr(model, 'load_weights') or not getattr(
      model, 'compiled', False
    ):
      raise ValueError(
        f'evaluate_checkpoints: model_fn has returned {model!r}, which is no '
        'compiled Keras model. Call model.compile with its loss and metrics.'
      )
    # Makes all variables, those of metrics too: what is made after a checkpoint
    # was restored would get values from it later.
    model.evaluate(self._dataset, steps=1, verbose=0)
    self._model = model

  def load(self, held: checkpoint_files.CheckpointFile) -> int:
    """Loads the weights of a checkpoint; returns its step.

    Raises:
      errors.CheckpointError: it does not fit the model.
      Exception: one of `checkpoint_loading.DAMAGE`.
    """
    return checkpoint_loading.load(self._model, held)

  def evaluate(
    self, checkpoint: checkpoint_files.CheckpointFile, step: int
  ) -> records_lib.Evaluation:
    """Evaluates the weights that were loaded.

    Args:
      checkpoint: from which they are.
      step: the step of training.
    """
    begun = time.monotonic()
    if self._model.optimizer is not None:
      self._model.optimizer.iterations.assign(step)  # callbacks read it
    metrics = self._model.evaluate(
      self._dataset,
      steps=self._steps,
      callbacks=list(self._callbacks),
      verbose=0,
      return_dict=True,
    )
    secs = time.monotonic() - begun
    values = {name: float(value) for name, value in metrics.items()}
    logging.info(
      'Evaluated %s at step %d in %.1f s: %s',
      checkpoint.path.name,
      step,
      secs,
      ', '.join(f'{name} {value:.6g}' for name, value in values.items()),
    )
    return records_lib.Evaluation(
      checkpoint=os.fspath(checkpoint.path.absolute()),
      step=step,
      metrics=values,
      time=time.time(),
      secs=secs,
      modified=checkpoint.modified,
    )
