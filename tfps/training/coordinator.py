"""A coordinator that schedules functions on workers, and trains.

```
with tfps.Coordinator(strategy, timeout_secs=300) as coordinator:
  result = coordinator.train(step_fn, dataset_fn, steps=10_000)
```
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import os
import time
from typing import Any
from typing import TypeVar

import tensorflow as tf

from tfps.training import checkpoints
from tfps.training import hooks as hooks_lib
from tfps.training import loop as loop_lib
from tfps.training import progress as progress_lib
from tfps.training import scheduling
from tfps.training import step_program
from tfps.training import train_spec
from tfps.wire import transfers

_Result = TypeVar('_Result')


class Coordinator(scheduling.SchedulingCoordinator):
  """A `ClusterCoordinator` with deadlines, an orderly end and a training loop.

  It takes the place of TensorFlow's class, whose contract it keeps. Beyond it:

  - Waits end at a deadline with an `errors.DeadlineError` that names the tasks
    that are silent, or else the workers that are still executing. Nothing is
    cancelled by it; the wait may be taken up again.
  - Once an error was raised by `schedule`, `join`, `done` or `fetch`, nothing
    is queued or in flight, and the next `schedule` begins afresh.
  - `close`, or the end of a `with` block, stops all its threads.

  There is one coordinator to a strategy; constructing a second one returns the
  first. A stock coordinator that the strategy had already becomes this one.

  Args:
    strategy: a parameter server strategy, ours or TensorFlow's.
    timeout_secs: how long each wait may take by default; None is for ever.
  """

  _global_step: tf.Variable | None = None

  @property
  def global_step(self) -> tf.Variable:
    """Counts, on a ps, the training steps that were applied."""
    if self._global_step is None:
      with self.strategy.scope():
        self._global_step = tf.Variable(
          0,
          dtype=tf.int64,
          trainable=False,
          name='global_step',
          # Of replicas whose gradients make one update, one counts it.
          aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )
    return self._global_step

  def train(
    self,
    step_fn: Callable[[Any], Mapping[str, Any] | None],
    dataset_fn: Callable[[tf.distribute.InputContext], tf.data.Dataset],
    *,
    steps: int | None = None,
    steps_per_execution: int = 1,
    max_unroll: int = step_program.MAX_UNROLL,
    checkpoint: Any = None,
    directory: str | os.PathLike[str] | None = None,
    checkpoint_every_secs: float | None = None,
    checkpoint_every_steps: int | None = None,
    max_to_keep: int = 3,
    checkpoint_options: tf.train.CheckpointOptions | None = None,
    hooks: Sequence[hooks_lib.Hook] = (),
    log_every_secs: float = 10.0,
    in_flight_per_worker: int = 2,
    stop_on_nan: bool = True,
    timeout_secs: float | None = None,
    clock: Callable[[], float] = time.monotonic,
  ) -> progress_lib.TrainResult:
    """Trains until the global step reaches a number.

    Workers execute `steps_per_execution` steps at a time, each on a batch of
    the worker's own dataset; `global_step` counts whole executions, once they
    are applied. A worker that dies has its execution repeated by another, so
    the steps it had done of it are applied twice. With a `Recovery` those are
    counted, and only the rest is done: at most one step, that at which it died,
    is applied twice.

    Args:
      step_fn: takes a batch; computes a gradient, applies it and returns
        scalar metrics by name, or None. Runs on workers, in a graph.
      dataset_fn: makes the dataset of one worker; called once for each, with
        `input_pipeline_id` the worker's index. The dataset must not run out:
        `repeat()` it. A worker that comes back begins its dataset anew, and so
        does one whose execution the loss of a ps has cut short. If it takes
        what it reads from a `tfps.input.SplitQueue`, it is called for the
        batches of one split, which must not be repeated.
      steps: where to stop, counted from the beginning of training, not of this
        call: after a resume, only what is left is done. Training ends before
        when all that a queue has to share out is done; None: then alone.
      steps_per_execution: how many steps a worker does at a time.
      max_unroll: how many of them to lay out in one graph; beyond it a loop
        goes over them. Fewer are traced faster, more are executed faster.
      checkpoint: what to save: a `tf.train.Checkpoint`, model or other
        trackable. The global step is saved with it as `global_step`.
      directory: where to save it, and to resume from when it has checkpoints.
      checkpoint_every_secs: how often to save besides at the end.
      checkpoint_every_steps: likewise, rounded up to whole executions.
      max_to_keep: how many checkpoints to keep.
      checkpoint_options: by default the variables are written by this process,
        which needs no filesystem shared with the ps;
        `tf.train.CheckpointOptions()` has each ps write its own.
      hooks: called with a `hooks.Progress` at the beginning, after each
        execution and at the end.
      log_every_secs: how often to log progress.
      in_flight_per_worker: executions to keep scheduled for each worker.
      stop_on_nan: whether a metric that is not a number is an error, raised
        before the next checkpoint; otherwise it is logged.
      timeout_secs: how long one execution, or one checkpoint, may take; by
        default the constructor's.
      clock: seconds that only go forward.

    Returns:
      Where training stands, with the metrics averaged since the log line
      before the last.

    Raises:
      errors.DeadlineError: names the tasks that are silent.
      errors.CheckpointError: the latest checkpoint is damaged, or one cannot
        be written, for example because the disk is full.
      FloatingPointError: a metric is not a number.
      ValueError: a dataset ran out, or an argument is wrong.
    """
    transfers.of(self.strategy).check_execution(steps_per_execution)
    plan = train_spec.TrainSpec(
      steps=train_spec.ENDLESS if steps is None else steps,
      steps_per_execution=steps_per_execution,
      max_unroll=max_unroll,
      in_flight_per_worker=in_flight_per_worker,
      stop_on_nan=stop_on_nan,
      timeout_secs=self._timeout(timeout_secs),
    )
    saving = checkpoints.Saving(
      checkpoint=checkpoint,
      directory=directory,
      every_secs=checkpoint_every_secs,
      every_steps=checkpoint_every_steps,
      max_to_keep=max_to_keep,
      options=checkpoint_options,
    )
    progress = progress_lib.TrainProgress(
      plan, hooks, log_every_secs=log_every_secs, clock=clock
    )
    loop = loop_lib.TrainingLoop(self, progress, saving)
    return loop.run(step_fn, dataset_fn)
