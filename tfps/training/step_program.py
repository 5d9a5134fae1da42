"""Step programs: functions of several training steps.

A worker is called once for several steps. The steps are unrolled in the graph,
which avoids the round trips to the ps that the control of a loop takes. Beyond
a limit, a loop repeats the unrolled steps, to keep the graph small.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from typing import Any
from typing import ClassVar
from typing import Protocol

import numpy as np
import tensorflow as tf

from tfps._compat import autograph
from tfps.training import step_log as step_log_lib
from tfps.updates.sync import session as session_lib
from tfps.updates.sync import step_sync
from tfps.variables import step_replicas
from tfps.wire import transfers

MAX_UNROLL = 32

StepFn = Callable[[Any], Mapping[str, Any] | None]

# Logs or synchronizes the steps of an execution: each is traced in its `step`.
_Stepper = (
  step_log_lib.StepLogWriter
  | step_log_lib.NoStepLogWriter
  | step_sync.BarrierStep
  | step_sync.StaleSyncStep
)


class Source(Protocol):
  """Source of an execution's batches.

  Attributes:
    may_be_empty: whether a worker may have no batches while others have some.
  """

  may_be_empty: ClassVar[bool]

  @property
  def spec(self) -> Any:
    """The type of the function's input `given`."""

  def batches(self, given: Any) -> Any:
    """Returns the part of the function's input that the steps need."""

  def after(self, batches: Any, number: tf.Tensor | int) -> Any:
    """Returns the iterator over the batches after some steps.

    Args:
      batches: the result of `batches`.
      number: how many steps have been done before, an int or scalar integer.
    """

  def draw(self, strategy: tf.distribute.Strategy, batches: Any) -> Any:
    """Returns the batch of a step, or one for each of its replicas.

    Args:
      strategy: runs the step.
      batches: the result of `after`.
    """

  def read_ahead(self, given: Any) -> tuple[tf.Tensor, ...]:
    """Prefetches batches.

    Args:
      given: the function's input.

    Returns:
      Further results of the function, if any; the last one is a vector, which
      is appended to the vector of metrics and bytes.
    """

  def end(self, given: Any, counted: tf.Tensor) -> Sequence[tf.Operation]:
    """Returns operations to execute after the steps.

    Args:
      given: the function's input.
      counted: how many steps count, a scalar integer.
    """


@dataclasses.dataclass(frozen=True)
class Iterated:
  """Source that is an iterator that does not end, or one for each worker.

  Attributes:
    spec: the type of the iterator or iterators.
  """

  may_be_empty: ClassVar[bool] = False

  spec: Any

  def batches(self, given: Any) -> Any:
    return given

  def after(self, batches: Any, number: tf.Tensor | int) -> Any:
    del number
    return batches

  def draw(self, strategy: tf.distribute.Strategy, batches: Any) -> Any:
    return step_replicas.next_batch(strategy, batches)

  def read_ahead(self, given: Any) -> tuple[tf.Tensor, ...]:
    del given
    return ()

  def end(self, given: Any, counted: tf.Tensor) -> Sequence[tf.Operation]:
    del given, counted
    return ()


@dataclasses.dataclass(frozen=True)
class Execution:
  """Traced function that does some steps on the batches of a source.

  Attributes:
    function: gets the source's input, and an id if its steps are logged; see
      `step_log`. Its last result is a single vector, to be fetched at once:
      the mean of each metric and the bytes that were transferred.
    names: the metrics' names, in the order of the vector.
    num_steps: how many steps it does.
    marked: the ring buffers to which the steps are logged; see `step_log`.
  """

  function: Any
  names: tuple[str, ...]
  num_steps: int
  marked: frozenset[int]

  def metrics(self, vector: Sequence[float]) -> dict[str, float]:
    """Returns the metrics in the function's vector."""
    return {n: float(v) for n, v in zip(self.names, vector, strict=False)}

  def num_bytes(self, vector: Sequence[float]) -> np.ndarray:
    """Returns the bytes in the function's vector, of shape [2, ps].

    The first row is what was pulled from each ps, the second what was pushed.
    """
    return np.reshape(vector[len(self.names) :], [2, -1]).astype(np.int64)


def trace(
  strategy: tf.distribute.Strategy,
  step_fn: StepFn,
  source: Source,
  *,
  global_step: tf.Variable,
  num_steps: int,
  max_unroll: int = MAX_UNROLL,
) -> Execution:
  """Traces an execution; to be called in the strategy's scope.

  Args:
    strategy: runs the step, in its replica context.
    step_fn: does one step on a batch; returns scalar metrics by name, or None.
    source: the source of the batches.
    global_step: increased by `num_steps` once all steps have been applied.
    num_steps: how many steps to do.
    max_unroll: how many of them to unroll in the graph.

  Raises:
    TypeError: `step_fn` does not return metrics by name.
    ValueError: a metric is not a scalar.
  """
  step = _Step(strategy, step_fn, source.draw)
  own = transfers.of(strategy)
  sync_session = session_lib.of(strategy)

  marked: set[int] = set()

  def make_stepper(*told: tf.Tensor) -> _Stepper:
    if sync_session is None:
      return step_log_lib.writer(strategy, *told)
    return sync_session.sync_step(
      *told,
      count=lambda: global_step.assign_add(1),
      comes_and_goes=source.may_be_empty,
    )

  @tf.function(autograph=False)
  def steps(batches: Any, *told: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    workspace = own.workspace()
    stepper = make_stepper(*told)
    unrolled = own.unrolled(max_unroll) if sync_session is None else num_steps
    unroll = _Unroll(step, own, workspace, source, batches)
    total = _repeat(unroll, stepper, num_steps, unrolled)
    marked.update(stepper.marked)
    if isinstance(stepper, step_sync.StaleSyncStep):
      with tf.control_dependencies(stepper.written):
        global_step.assign_add(num_steps)
    num_bytes = tf.reshape(workspace.counted(), [-1])
    vector = [total / num_steps, tf.cast(num_bytes, total.dtype)]
    return tf.concat(vector, axis=0), step_sync.num_counted(stepper, num_steps)

  def count_all(given: Any, counted: tf.Tensor, *id: tf.Tensor) -> None:
    counting = step_log_lib.writer(strategy, *id).step(num_steps + 1)
    # A function's result waits for all its updates.
    with (
      tf.control_dependencies([counted]),
      counting,
      tf.control_dependencies(source.end(given, counted)),
    ):
      global_step.assign_add(num_steps)

  def execution(given: Any, *told: tf.Tensor) -> Any:
    ahead = source.read_ahead(given)
    if sync_session is None:
      vector, counted = steps(source.batches(given), *told)
      count_all(given, counted, *told)
    else:  # synchronous updates count the steps
      vector, counted = sync_session.around(steps)(source.batches(given), *told)
      source.end(given, counted)
    return _with_ahead(ahead, vector, counted)

  if sync_session is not None:
    spec: Any = (session_lib.WORKER,)
  else:
    spec = step_log_lib.id_spec(strategy, num_steps)
  function = transfers.trace_until_stable(
    lambda: tf.function(execution, autograph=False).get_concrete_function(
      source.spec, *spec
    )
  )
  names = step.names or ()
  return Execution(function, names, num_steps, frozenset(marked))


def _with_ahead(
  ahead: tuple[tf.Tensor, ...], vector: tf.Tensor, counted: tf.Tensor
) -> Any:
  """Returns a function's results with those of `Source.read_ahead`."""
  if not ahead:
    return vector
  *others, last = ahead
  tail = [tf.cast(last, vector.dtype), [tf.cast(counted, vector.dtype)]]
  return *others, tf.concat([vector, *tail], axis=0)


class _Step:
  """One step, whose result is the vector of its metrics.

  Attributes:
    names: the metrics' names; None until the step was traced.
  """

  def __init__(
    self,
    strategy: tf.distribute.Strategy,
    step_fn: StepFn,
    draw: Callable[[tf.distribute.Strategy, Any], Any],
  ) -> None:
    self.names: tuple[str, ...] | None = None
    self._strategy = strategy
    self._step_fn = step_fn
    self._draw = draw

  def __call__(self, batches: Any) -> tf.Tensor:
    with autograph.enabled():
      batch = self._draw(self._strategy, batches)
      metrics = self._strategy.run(self._step_fn, args=(batch,))
    return self._vector(metrics)

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
    merged = {
      n: step_replicas.merge_scalars(self._strategy, metrics[n]) for n in names
    }
    return _stack([_scalar(n, v) for n, v in merged.items()])


@dataclasses.dataclass(frozen=True)
class _Unroll:
  """Unrolls steps in the graph; returns the sum of their metrics."""

  step: _Step
  own: transfers.Transfers
  workspace: Any
  source: Source
  batches: Any

  def __call__(
    self, number: int, stepper: _Stepper, done: tf.Tensor | int = 0
  ) -> tf.Tensor:
    is_alone = isinstance(
      stepper, step_log_lib.StepLogWriter | step_log_lib.NoStepLogWriter
    )
    sync_step = None if is_alone else stepper
    steps = self.own.steps(self.workspace, number, sync_step)
    batches = self.source.after(self.batches, done)
    totals = []
    for i in range(number):
      with stepper.step(i + 1), steps.step():
        totals.append(self.step(batches))
    return sum(totals[1:], totals[0])


def _repeat(
  unroll: _Unroll, stepper: _Stepper, num_steps: int, max_unroll: int
) -> tf.Tensor:
  """Traces `num_steps` steps; returns the sum of their metrics."""
  loops, rest = divmod(num_steps, max_unroll)
  first = rest or max_unroll
  total = unroll(first, stepper)
  loops = loops if rest else loops - 1

  def body(i: tf.Tensor, total: tf.Tensor) -> Any:
    done = first + i * max_unroll
    later = stepper.after(done)
    return i + 1, total + unroll(max_unroll, later, done)

  if loops:
    _, total = tf.while_loop(
      lambda i, _: i < loops, body, (0, total), parallel_iterations=1
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
