"""Trains in one of the workers that share variables, each at its own pace."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import time
from typing import Any
from typing import TYPE_CHECKING

from absl import logging
import tensorflow as tf

from tfps import _endless
from tfps import attempts as attempts_lib
from tfps import checkpoints as checkpoints_lib
from tfps import execution
from tfps import hooks as hooks_lib
from tfps import marks as marks_lib
from tfps import training_loop
from tfps import worker_input

if TYPE_CHECKING:
  from tfps import between_graph


class ReplicaLoop:
  """One call of `BetweenGraphStrategy.train`.

  Args:
    strategy: whose variables are trained.
    plan: how to train.
    saving: what to save, where and how often, if this is the chief.
    hooks: get the progress.
    clock: seconds that only go forward.
  """

  def __init__(
    self,
    strategy: 'between_graph.BetweenGraphStrategy',
    plan: training_loop.Plan,
    saving: checkpoints_lib.Saving,
    *,
    hooks: Sequence[hooks_lib.Hook],
    clock: Callable[[], float] = time.monotonic,
  ) -> None:
    self._strategy = strategy
    self._surviving = strategy.surviving
    self._plan = plan
    self._hooks = hooks
    self._clock = clock
    self._started_at = clock()
    self._rate = training_loop.Rate()
    self._executions: dict[int, execution.Execution] = {}
    self._counts: attempts_lib.Counts | None = None
    self._checkpoints = checkpoints_lib.Checkpoints(
      saving if strategy.is_chief else checkpoints_lib.Saving(),
      strategy.global_step,
      task=strategy.task,
    )

  def run(
    self, step_fn: execution.StepFn, dataset_fn: worker_input.DatasetFn
  ) -> tuple[int, int, float]:
    """Trains to the last step; returns the first, the last and the seconds."""
    start = self._begin()
    self._count_what_is_cut_short()
    dataset = dataset_fn(self._strategy.input_context())
    batches = _endless.Endless(dataset, self._num_interruptions)
    step = start
    while step < self._plan.steps or self._is_set_back():
      size = self._size(step)
      if size not in self._executions:
        self._executions[size] = self._trace(step_fn, dataset, size)
      step = self._execute(self._executions[size], batches)
      if self._checkpoints.is_due(step, self._secs()):
        self._save(step)
    self._save(step)
    self._tell('end', step)
    return start, step, self._secs()

  def _count_what_is_cut_short(self) -> None:
    marks = marks_lib.of(self._strategy)
    if marks is not None:
      with self._strategy.scope():
        self._counts = attempts_lib.Counts(
          self._strategy, marks, self._strategy.global_step
        )

  def _is_set_back(self) -> bool:
    """Whether steps were lost, with a ps, before the chief could keep them."""
    guard = self._strategy.guard
    if guard is None or not self._strategy.is_chief:
      return False
    try:
      guard.keep()
    except tf.errors.OpError as error:  # the next line mends it
      logging.warning('A ps is lost at the end: %s', error)
    return self._global_step() < self._plan.steps

  def _begin(self) -> int:
    """Restores a checkpoint unless somebody has trained; the global step."""
    if self._global_step() == 0:
      self._checkpoints.restore()
    self._strategy.wait_for_chief('train', self._plan.timeout_secs)
    step = self._global_step()
    self._checkpoints.begin(step, self._secs())
    self._tell('begin', step)
    return step

  def _size(self, step: int) -> int:
    """Full executions as long as they fit, then single steps."""
    full = self._plan.steps_per_execution
    return full if step + full <= self._plan.steps else 1

  def _trace(
    self, step_fn: execution.StepFn, dataset: tf.data.Dataset, size: int
  ) -> execution.Execution:
    with self._strategy.scope():
      return execution.trace(
        self._strategy,
        step_fn,
        tf.data.IteratorSpec(dataset.element_spec),
        global_step=self._strategy.global_step,
        num_steps=size,
        max_unroll=self._plan.max_unroll,
      )

  def _execute(
    self, to_do: execution.Execution, batches: _endless.Endless
  ) -> int:
    """Does some steps; the global step after them."""
    try:
      vector = self._surviving(self._attempt(to_do, batches))
    except tf.errors.OutOfRangeError as error:
      raise ValueError(
        'dataset_fn: the dataset ran out; repeat() it.'
      ) from error
    metrics = {}
    if vector is not None:  # else it was cut short
      metrics = to_do.metrics(vector)
      self._strategy.transfers.count(to_do.num_bytes(vector), to_do.num_steps)
    step = self._global_step()
    self._rate.add(self._secs(), step)
    self._plan.check(metrics, step)
    self._tell('step', step, metrics)
    return step

  def _attempt(
    self, to_do: execution.Execution, batches: _endless.Endless
  ) -> Callable[[], Any]:
    """What does some steps, and may be called again after a loss."""

    def execute(*id: tf.Tensor) -> Any:
      return to_do.function(batches.iterator, *id).numpy()

    if self._counts is None:
      return execute
    attempt = attempts_lib.Countable(self._counts, to_do)
    return lambda: attempt(execute, *attempt.args)

  def _save(self, step: int) -> None:
    self._surviving(lambda: self._checkpoints.save(step, self._secs()))

  def _tell(
    self, moment: str, step: int, metrics: Mapping[str, float] | None = None
  ) -> None:
    progress = hooks_lib.Progress(
      moment=moment,
      step=step,
      steps=self._plan.steps,
      metrics=metrics or {},
      steps_per_sec=self._rate.steps_per_sec(),
      elapsed_secs=self._secs(),
    )
    for hook in self._hooks:
      hook(progress)

  def _num_interruptions(self) -> int:
    guard = self._strategy.guard
    return guard.num_interruptions if guard else 0

  def _global_step(self) -> int:
    return self._surviving(lambda: int(self._strategy.global_step.numpy()))

  def _secs(self) -> float:
    return self._clock() - self._started_at
