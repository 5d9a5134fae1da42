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

from tfps import marks as marks_lib
from tfps.wire import transfers

MAX_UNROLL = 32

StepFn = Callable[[Any], Mapping[str, Any] | None]


@dataclasses.dataclass(frozen=True)
class Execution:
  """A function of an iterator that does some steps.

  Attributes:
    function: returns the mean of each metric and the bytes that have crossed,
      as one vector, so that a single tensor comes back. It gets an id, too, if
      it marks its steps; see `tfps.marks`.
    names: the metrics' names, in that order.
    num_steps: how many steps it does.
    marked: the rings in which they are marked; see `tfps.marks`.
  """

  function: Any
  names: tuple[str, ...]
  num_steps: int
  marked: frozenset[int]

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

  marked: set[int] = set()

  @tf.function
  def steps(iterator: Any, *id: tf.Tensor) -> tf.Tensor:
    workspace = own.workspace()
    unrolled = own.unrolled(max_unroll)
    marking = marks_lib.marking(strategy, *id)
    unroll = _Unroll(step, own, workspace, iterator)
    total = _repeat(unroll, marking, num_steps, unrolled)
    marked.update(marking.marked)
    counted = tf.reshape(workspace.counted(), [-1])
    return tf.concat([total / num_steps, tf.cast(counted, total.dtype)], axis=0)

  @tf.function
  def execution(iterator: Any, *id: tf.Tensor) -> Any:
    vector = steps(iterator, *id)
    counting = marks_lib.marking(strategy, *id).step(num_steps + 1)
    # A function's result waits for all its updates.
    with tf.control_dependencies([vector]), counting:
      global_step.assign_add(num_steps)
    return vector

  id_spec = marks_lib.id_spec(strategy, num_steps)
  function = transfers.traced(
    lambda: execution.get_concrete_function(iterator_spec, *id_spec)
  )
  names = step.names or ()
  return Execution(function, names, num_steps, frozenset(marked))


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


@dataclasses.dataclass(frozen=True)
class _Unroll:
  """Lays out steps in the graph; gives the sum of their metrics."""

  step: _Step
  own: transfers.Transfers
  workspace: Any
  iterator: Any

  def __call__(
    self, number: int, marking: marks_lib.Marking | marks_lib.Unmarked
  ) -> tf.Tensor:
    steps = self.own.steps(self.workspace, number)
    totals = []
    for i in range(number):
      with marking.step(i + 1), steps.step():
        totals.append(self.step(self.iterator))
    return sum(totals[1:], totals[0])


def _repeat(
  unroll: _Unroll,
  marking: marks_lib.Marking | marks_lib.Unmarked,
  num_steps: int,
  max_unroll: int,
) -> tf.Tensor:
  """The sum of the metrics of so many steps."""
  loops, rest = divmod(num_steps, max_unroll)
  first = rest or max_unroll
  total = unroll(first, marking)
  loops = loops if rest else loops - 1

  def go_on(i: tf.Tensor, total: tf.Tensor) -> Any:
    later = marking.after(first + i * max_unroll)
    return i + 1, total + unroll(max_unroll, later)

  if loops:
    _, total = tf.while_loop(
      lambda i, _: i < loops, go_on, (0, total), parallel_iterations=1
    )
  return total


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
