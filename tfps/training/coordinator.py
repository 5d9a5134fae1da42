"""Coordinator that schedules functions on workers and trains.

```
with tfps.Coordinator(strategy, timeout_secs=300) as coordinator:
  result = coordinator.train(step_fn, dataset_fn, steps=10_000)
```
"""

import threading

import tensorflow as tf

from tfps.training import executors
from tfps.training import scheduling
from tfps.training import trainer


class Coordinator(trainer.Trainer, scheduling.SchedulingCoordinator):
  """A `ClusterCoordinator` with deadlines, an orderly end and a training loop.

  It keeps the contract of TensorFlow's class, and adds:

  - Each wait has a deadline. When it expires, an `errors.DeadlineError` names
    the tasks that do not respond, or else the workers that are still executing.
    Nothing is cancelled; the wait may be repeated.
  - Once `schedule`, `join`, `done` or `fetch` has raised an error, nothing is
    queued or in flight, and functions may be scheduled again.
  - `close`, or the end of a `with` block, stops all its threads.

  In `train`, workers execute steps on batches of their own datasets, and
  `global_step` counts whole executions once they are applied. If a worker dies,
  another repeats its execution, and the steps already done are applied twice.
  With a `Recovery`, steps already done are counted, and at most one step is
  applied twice.

  A strategy has one coordinator; constructing a second one returns the first.
  If the strategy has one of TensorFlow's class, it becomes a `Coordinator`.

  Args:
    strategy: a `ParameterServerStrategy` of tfps or TensorFlow.
    timeout_secs: how many seconds each wait may take by default; None for no
      limit.

  Raises:
    ValueError: the strategy has no workers to schedule functions on.
  """

  in_flight_per_worker = 2  # a worker finds the next one when it has done one

  _global_step: tf.Variable | None = None
  # A thread that asks again while it makes it, as in a callback of a recovery,
  # does not wait for itself.
  _making_global_step = threading.RLock()

  @property
  def global_step(self) -> tf.Variable:
    """The number of applied training steps: an int64 scalar on a ps."""
    with self._making_global_step:
      if self._global_step is None:
        self._global_step = self._make_global_step()
    return self._global_step

  def _make_global_step(self) -> tf.Variable:
    with self.strategy.scope():
      return tf.Variable(
        0,
        dtype=tf.int64,
        trainable=False,
        name='global_step',
        # Replicas whose gradients make one update count it once.
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
      )

  def executor(self, timeout_secs: float | None) -> executors.Executor:
    return executors.ScheduledExecutor(self, timeout_secs)
