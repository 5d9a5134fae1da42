"""Coordinator that schedules functions on workers and trains.

```
with tfps.Coordinator(strategy, timeout_secs=300) as coordinator:
  result = coordinator.train(step_fn, dataset_fn, steps=10_000)
```
"""

import contextlib
from typing import Any

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

  def _scope(self) -> contextlib.AbstractContextManager[Any]:
    return self.strategy.scope()

  def executor(self, timeout_secs: float | None) -> executors.Executor:
    return executors.ScheduledExecutor(self, timeout_secs)
