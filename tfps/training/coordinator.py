"""Coordinator that schedules functions on workers and trains.

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
from tfps.training import train_spec
from tfps.wire import transfers

_Result = TypeVar('_Result')


class Coordinator(scheduling.SchedulingCoordinator):
  """A `ClusterCoordinator` with deadlines, an orderly end and a training loop.

  It keeps the contract of TensorFlow's class, and adds:

  - Each wait has a deadline. When it expires, an `errors.DeadlineError` names
    the tasks that do not respond, or else the workers that are still executing.
    Nothing is cancelled; the wait may be repeated.
  - Once `schedule`, `join`, `done` or `fetch` has raised an error, nothing is
    queued or in flight, and functions may be scheduled again.
  - `close`, or the end of a `with` block, stops all its threads.

  A strategy has one coordinator; constructing a second one returns the first.
  If the strategy has one of TensorFlow's class, it becomes a `Coordinator`.

  Args:
    strategy: a `ParameterServerStrategy` of tfps or TensorFlow.
    timeout_secs: how many seconds each wait may take by default; None for no
      limit.

  Raises:
    ValueError: the strategy has no workers to schedule functions on.
  """

  _global_step: tf.Variable | None = None

  @property
  def global_step(self) -> tf.Variable:
    """The number of applied training steps: an int64 scalar on a ps."""
    if self._global_step is None:
      with self.strategy.scope():
        self._global_step = tf.Variable(
          0,
          dtype=tf.int64,
          trainable=False,
          name='global_step',
          # Replicas whose gradients make one update count it once.
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
    """Trains until the global step reaches a number, or a queue ends.

    Workers execute `steps_per_execution` steps at a time, each on a batch of
    the worker's own dataset. `global_step` counts whole executions, once they
    are applied. If a worker dies, another repeats its execution, and the steps
    already done are applied twice. With a `Recovery`, steps already done are
    counted, and at most one step is applied twice.

    Args:
      step_fn: gets a batch; computes gradients, applies them and returns a
        mapping of scalar metrics by name, or None. Runs on workers, in a graph.
      dataset_fn: returns the dataset of one worker; called once for each, with
        the worker's index as `input_pipeline_id`. The dataset must not end:
        `repeat()` it. It starts from its beginning when the worker restarts, or
        the loss of a ps interrupts an execution. A `dataset_fn` that reads from
        a `tfps.input.SplitQueue` returns the batches of one split, not
        repeated.
      steps: the global step at which to stop, counted over all calls: a resumed
        training does the missing steps. Training also stops when all splits of
        a queue are done; None stops only then.
      steps_per_execution: how many steps a worker does in one function call.
      checkpoint: what to save: a `tf.train.Checkpoint`, model or other
        trackable. The global step is saved with it, as `global_step`.
      directory: where to save checkpoints, and to resume from the latest.
      checkpoint_every_secs: the period of checkpoints in seconds. In any case
        one is saved at the end.
      checkpoint_every_steps: the period in steps, rounded up to whole
        executions.
      max_to_keep: how many checkpoints to keep.
      checkpoint_options: by default this process writes all variables, which
        needs no filesystem shared with the ps; with
        `tf.train.CheckpointOptions()` each ps writes its own.
      hooks: called with a `hooks.Progress` at the beginning, after each
        execution and at the end.
      log_every_secs: the period of log lines in seconds.
      in_flight_per_worker: how many executions to keep scheduled per worker.
      stop_on_nan: whether a metric that is not a number raises an error, before
        the next checkpoint; otherwise it is logged.
      timeout_secs: how many seconds one execution or checkpoint may take; by
        default the constructor's.
      clock: returns a monotonic time in seconds.

    Returns:
      The global step, the number of steps and seconds of this call, and the
      metrics averaged over the last log line's steps.

    Raises:
      errors.DeadlineError: names the tasks that do not respond.
      errors.CheckpointError: the latest checkpoint is damaged, or one cannot
        be written, for example because the disk is full.
      errors.InputError: a split of a queue cannot be read.
      FloatingPointError: a metric is not a number.
      ValueError: a dataset ended, or an argument is wrong.
    """
    transfers.of(self.strategy).check_execution(steps_per_execution)
    spec = train_spec.TrainSpec(
      steps=train_spec.ENDLESS if steps is None else steps,
      steps_per_execution=steps_per_execution,
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
      spec, hooks, log_every_secs=log_every_secs, clock=clock
    )
    loop = loop_lib.TrainingLoop(self, progress, saving)
    return loop.run(step_fn, dataset_fn)
