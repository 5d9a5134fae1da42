"""Steps of a Keras model in one function, for a worker to execute."""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfps._compat import execution_variables
from tfps.keras import additivity
from tfps.keras import inputs
from tfps.keras import state as state_lib
from tfps.wire import transfers

StepFn = Callable[[Any], Any]


@dataclasses.dataclass
class Result:
  """What an execution hands back.

  Attributes:
    metrics: what each step has added to the metrics; one row for each.
    handed_on: what it leaves to the next execution.
    num_bytes: what has crossed, by direction and ps.
    logs: what the last step returned, by name.
  """

  metrics: np.ndarray
  handed_on: np.ndarray
  num_bytes: np.ndarray
  logs: dict[str, np.ndarray]


class NotAdditiveError(Exception):
  """Metrics do not add up; executions have to be made anew."""


class Executions:
  """Functions that do some steps of a model each.

  Args:
    strategy: runs the steps, in its replica context.
    step_fn: a model's `train_step` or `test_step`.
    state: the model's metrics and seeds.
  """

  def __init__(
    self,
    strategy: tf.distribute.Strategy,
    step_fn: StepFn,
    state: state_lib.State,
  ) -> None:
    self._strategy = strategy
    self._transfers = transfers.of(strategy)
    self._step_fn = step_fn
    self._state = state
    self._log_names: list[str] = []
    self._functions: dict[Any, Any] = {}

  def on_batches(self, num_steps: int) -> Any:
    """A function of `num_steps` batches and of what is handed on.

    The batches are one structure that `inputs.stack` made, or a list.
    """

    def execute(batches: Any, handed_on: Any) -> Any:
      if not isinstance(batches, list):
        batches = inputs.unstack(batches, num_steps)
      return self._execute(iter(batches), num_steps, handed_on)

    return self._function(('batches', num_steps), execute)

  def on_iterator(self, num_steps: int) -> Any:
    """A function of an iterator over batches and of what is handed on."""

    def execute(batches: Any, handed_on: Any) -> Any:
      return self._execute(batches, num_steps, handed_on)

    return self._function(('iterator', num_steps), execute)

  def forget(self) -> None:
    """Has functions made anew, by what the state has taken note of."""
    self._functions.clear()

  def result(self, fetched: Any) -> Result:
    """Makes sense of what a function returned."""
    metrics, handed_on, num_bytes, logs = fetched
    named = dict(zip(self._log_names, logs, strict=True))
    return Result(
      np.asarray(metrics), np.asarray(handed_on), np.asarray(num_bytes), named
    )

  def _function(self, key: Any, execute: Any) -> Any:
    if key not in self._functions:
      self._functions[key] = tf.function(
        tf.autograph.experimental.do_not_convert(execute), reduce_retracing=True
      )
    return self._functions[key]

  def _execute(self, batches: Any, num_steps: int, handed_on: Any) -> Any:
    added = []
    workspace = self._transfers.workspace()
    steps = self._transfers.steps(workspace, num_steps)
    with execution_variables.copies(self._state.variables) as handles:
      self._state.begin_execution(handed_on)
      for _ in range(num_steps):
        self._state.begin_step()
        first = len(tf.compat.v1.get_default_graph().get_operations())
        with steps.step():
          logs = self._strategy.run(self._step_fn, args=(next(batches),))
        self._check(handles, first)
        added.append(self._state.end_step())
      handed_on = self._state.end_execution()
      counted = workspace.counted()
      return tf.stack(added), handed_on, counted, self._flat(logs)

  def _check(self, handles: Sequence[tf.Tensor], first: int) -> None:
    """Makes sure that the step only adds to metrics that are to add up.

    Raises:
      NotAdditiveError: some are not, of which the state has now taken note.
    """
    graph = tf.compat.v1.get_default_graph()
    operations = graph.get_operations()[first:]
    metrics = zip(self._state.metrics, handles, strict=False)
    wrong = [
      variable
      for variable, handle in metrics
      if not additivity.adds_up(handle, operations)
    ]
    if wrong:
      self._state.chain(wrong)
      raise NotAdditiveError

  def _flat(self, logs: Any) -> list[tf.Tensor]:
    """The values of logs whose names are noted."""
    by_name: dict[str, Any] = {}
    for name, value in (logs or {}).items():
      by_name.update(value if isinstance(value, dict) else {name: value})
    self._log_names = list(by_name)
    return [
      tf.convert_to_tensor(keras.ops.convert_to_tensor(value))
      for value in by_name.values()
    ]
