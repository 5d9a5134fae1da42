"""Base class of trainers: `train` of the coordinator and of each strategy."""

from collections.abc import Sequence
import contextlib
import os
import threading
from typing import Any

import tensorflow as tf

from tfps.input import per_worker
from tfps.training import checkpoints as checkpoints_lib
from tfps.training import executors
from tfps.training import hooks as hooks_lib
from tfps.training import local_executor
from tfps.training import loop as loop_lib
from tfps.training import progress as progress_lib
from tfps.training import step_program
from tfps.training import train_spec


class Trainer:
  """Object that trains with a step function, checkpoints and hooks.

  Attributes:
    timeout_secs: the default of `train`.
    in_flight_per_worker: how many executions are submitted for each worker, of
      which it executes one.
  """

  timeout_secs: float | None = None
  in_flight_per_worker: int = 1

  _global_step: tf.Variable | None = None
  # A thread that asks again while it makes it, as in a callback of a recovery,
  # does not wait for itself.
  _making_global_step = threading.RLock()

  @property
  def global_step(self) -> tf.Variable:
    """The number of steps that `train` has applied: an int64 scalar variable.

    Steps of all workers count, and those in loops of your own if you add them:
    `global_step.assign_add(1)`.
    """
    with self._making_global_step:
      if self._global_step is None:
        self._global_step = self._make_global_step()
    return self._global_step

  def _make_global_step(self) -> tf.Variable:
    with self._scope():
      return tf.Variable(
        0,
        dtype=tf.int64,
        trainable=False,
        name='global_step',
        # Replicas whose gradients make one update count it once.
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
      )

  def _scope(self) -> contextlib.AbstractContextManager[Any]:
    """Returns the scope of the strategy: here, of this object."""
    strategy: Any = self
    return strategy.scope()

  def executor(self, timeout_secs: float | None) -> executors.Executor:
    """Returns the executor of one call of `train`: here, of this process.

    Args:
      timeout_secs: how long an execution may take, in seconds; None for no
        limit.
    """
    strategy: Any = self
    return local_executor.LocalExecutor(strategy, timeout_secs)

  def train(
    self,
    step_fn: step_program.StepFn,
    dataset_fn: per_worker.DatasetFn,
    *,
    steps: int | None = None,
    steps_per_execution: int = 1,
    checkpoint: Any = None,
    checkpoint_dir: str | os.PathLike[str] | None = None,
    checkpoint_every_secs: float | None = None,
    checkpoint_every_steps: int | None = None,
    max_to_keep: int = 3,
    checkpoint_options: tf.train.CheckpointOptions | None = None,
    hooks: Sequence[hooks_lib.Hook] = (),
    log_every_secs: float = 10.0,
    stop_on_nan: bool = True,
    timeout_secs: float | None = None,
  ) -> progress_lib.TrainResult:
    """Trains until the global step reaches a number, or a queue ends.

    See the class about the order of steps, and about steps that are repeated
    after a loss.

    Args:
      step_fn: a step on a batch: computes gradients, applies them and returns
        scalar metrics by name, or None. Runs on a worker, in a graph.
      dataset_fn: makes the dataset of a worker from its `InputContext`, whose
        `input_pipeline_id` is the worker's index. With several devices, a batch
        is for one of them. The dataset must not end: `repeat()` it. It begins
        again when the worker restarts, or a lost ps interrupts an execution. If
        it reads from a `tfps.input.SplitQueue`, it has the batches of one
        split, and must not be repeated.
      steps: the global step to reach, which includes the steps of earlier
        calls, of other workers, and those before a resume. Training ends
        earlier when a queue is finished; None trains until then.
      steps_per_execution: number of steps that a worker does in one call.
      checkpoint: a `tf.train.Checkpoint`, model or other trackable to save. The
        global step is saved with it, as `global_step`.
      checkpoint_dir: where to save checkpoints, and to resume from the latest
        one.
      checkpoint_every_secs: seconds between checkpoints; one is always saved at
        the end.
      checkpoint_every_steps: steps between checkpoints, rounded up to whole
        executions.
      max_to_keep: number of checkpoints to keep.
      checkpoint_options: by default this process writes all variables, which
        needs no file system shared with the ps; with
        `tf.train.CheckpointOptions()` each ps writes its own.
      hooks: called with a `hooks.Progress` at the beginning, after each
        execution and at the end.
      log_every_secs: seconds between log lines.
      stop_on_nan: whether a NaN metric raises an error, before the next
        checkpoint; otherwise it is logged.
      timeout_secs: how many seconds an execution or a checkpoint may take; by
        default the coordinator's timeout, otherwise without limit.

    Returns:
      The global step, the number of steps and seconds of this call, and the
      mean metrics of the last log line's steps: over all workers, or those of
      this one between graphs.

    Raises:
      errors.CheckpointError: the latest checkpoint is damaged, or one cannot be
        written, for example because the disk is full.
      errors.DeadlineError: an execution takes too long, or a task is frozen;
        names the tasks.
      errors.InputError: a split cannot be read; names it.
      errors.UnreachableError: a task that is needed has ended; names it.
      FloatingPointError: a metric is NaN.
      ValueError: a dataset ended, or an argument is invalid.
    """
    spec = train_spec.TrainSpec(
      steps=train_spec.ENDLESS if steps is None else steps,
      steps_per_execution=steps_per_execution,
      in_flight_per_worker=self.in_flight_per_worker,
      stop_on_nan=stop_on_nan,
      timeout_secs=self.timeout_secs if timeout_secs is None else timeout_secs,
    )
    saving = checkpoints_lib.Saving(
      checkpoint=checkpoint,
      directory=checkpoint_dir,
      every_secs=checkpoint_every_secs,
      every_steps=checkpoint_every_steps,
      max_to_keep=max_to_keep,
      options=checkpoint_options,
    )
    progress = progress_lib.TrainProgress(
      spec, hooks, log_every_secs=log_every_secs
    )
    executor = self.executor(spec.timeout_secs)
    return loop_lib.TrainingLoop(executor, progress, saving).run(
      step_fn, dataset_fn
    )
