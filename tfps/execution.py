"""Many training steps in one function, so that a worker is called less often.

Steps are laid out one after another in the graph: the worker then runs without
the round trips to the ps that controlling a loop takes. Beyond a bound a loop
goes over such stretches, to keep the graph small.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from tfps.wire import transfers

MAX_UNROLL = 32

StepFn = Callable[[Any], Mapping[str, Any] | None]


@dataclasses.dataclass(frozen=True)
class Execution:
  """A function of an iterator that does some steps.

  Attributes:
    function: returns the mean of each metric and the bytes that have crossed,
      as one vector, so that a single tensor comes back.
    names: the metrics' names, in that order.
    num_steps: how many steps it does.
  """

  function: Any
  names: tuple[str, ...]
  num_steps: int

  def metrics(self, vector: Sequence[float]) -> dict[str, float]:
    """The metrics in a result of the function."""
    return {n: float(v) for n, v in zip(self.names, vector, strict=False)}

  def num_bytes(self, vector: Sequence[float]) -> np.ndarray:
    """The bytes in a result of the function, by direction and ps."""
    return np.reshape(vector[len(self.names) :], [2, -1]).astype(np.int64)


def trace(
  strategy: tf.distribute.Strategy,
  step_fn: StepFn,
  iterator_spec: Any,
  *,
  global_step: tf.Variable,
  num_steps: int,
  max_unroll: int = MAX_UNROLL,
) -> Execution:
  """Builds an execution; to be called in the strategy's scope.

  Args:
    strategy: runs the step, in its replica context.
    step_fn: one step on a batch.
    iterator_spec: the type of the iterator over batches.
    global_step: increased by `num_steps` once all steps have been applied.
    num_steps: how many steps to do.
    max_unroll: how many of them to lay out in the graph.
  """
  step = _Step(strategy, step_fn)
  own = transfers.of(strategy)

  @tf.function
  def steps(iterator: Any) -> tf.Tensor:
    workspace = own.workspace()
    unrolled = own.unrolled(max_unroll)
    total = _repeat(step, own, workspace, iterator, num_steps, unrolled)
    counted = tf.reshape(workspace.counted(), [-1])
    return tf.concat([total / num_steps, tf.cast(counted, total.dtype)], axis=0)

  @tf.function
  def execution(iterator: Any) -> Any:
    vector = steps(iterator)
    # A function's result waits for all its updates.
    with tf.control_dependencies([vector]):
      global_step.assign_add(num_steps)
    return vector

  function = transfers.traced(
    lambda: execution.get_concrete_function(iterator_spec)
  )
  return Execution(function, step.names or (), num_steps)


class _Step:
  """One step, its metrics as a vector; knows their names once traced."""

  def __init__(self, strategy: tf.distribute.Strategy, step_fn: StepFn) -> None:
    self.names: tuple[str, ...] | None = None
    self._strategy = strategy
    self._step_fn = step_fn

  def __call__(self, iterator: Any) -> tf.Tensor:
    batch = next(iterator)
    return self._vector(self._strategy.run(self._step_fn, args=(batch,)))

  def _vector(self, metrics: Mapping[str, Any] | None) -> tf.Tensor:
    if not isinstance(metrics, Mapping | None):
      raise TypeError(
        f'step_fn: returned {metrics!r}; return metrics by name, or None.'
      )
    metrics = metrics or {}
    names = tuple(metrics)
    if self.names not in (None, names):
      raise ValueError(f'step_fn: metrics {names} after {self.names}.')
    self.names = names
    return _stack([_scalar(n, v) for n, v in metrics.items()])


def _repeat(
  step: _Step,
  own: transfers.Transfers,
  workspace: Any,
  iterator: Any,
  num_steps: int,
  max_unroll: int,
) -> tf.Tensor:
  """The sum of the metrics of so many steps."""

  def unroll(number: int) -> tf.Tensor:
    return _unroll(step, own.steps(workspace, number), iterator, number)

  loops, rest = divmod(num_steps, max_unroll)
  total = unroll(rest or max_unroll)
  loops = loops if rest else loops - 1
  if loops:
    _, total = tf.while_loop(
      lambda i, _: i < loops,
      lambda i, total: (i + 1, total + unroll(max_unroll)),
      (0, total),
      parallel_iterations=1,
    )
  return total


def _unroll(
  step: _Step, steps: Any, iterator: Any, num_steps: int
) -> tf.Tensor:
  totals = []
  for _ in range(num_steps):
    with steps.step():
      totals.append(step(iterator))
  return sum(totals[1:], totals[0])


def _scalar(name: str, value: Any) -> tf.Tensor:
  value = tf.convert_to_tensor(value)
  if value.shape.rank != 0:
    raise ValueError(
      f'step_fn: metric {name!r} has the shape {value.shape}; reduce it to '
      'a scalar, for example with tf.reduce_mean.'
    )
  return tf.cast(value, tf.float64)


def _stack(scalars: Sequence[tf.Tensor]) -> tf.Tensor:
  return tf.stack(scalars) if scalars else tf.zeros([0], tf.float64)
