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
from typing import ClassVar
from typing import Protocol

import numpy as np
import tensorflow as tf

from tfps.training import step_log as step_log_lib
from tfps.updates.sync import session as session_lib
from tfps.updates.sync import step_sync
from tfps.variables import step_replicas
from tfps.wire import transfers

MAX_UNROLL = 32

StepFn = Callable[[Any], Mapping[str, Any] | None]
Course = (
  step_log_lib.Marking
  | step_log_lib.Unmarked
  | step_sync.BarrierStep
  | step_sync.StaleSyncStep
)


class Source(Protocol):
  """Where the steps of an execution have their batches from.

  Attributes:
    may_be_empty: whether there may be none for a worker, while others have
      some.
  """

  may_be_empty: ClassVar[bool]

  @property
  def spec(self) -> Any:
    """The type of what the function gets for it."""

  def batches(self, given: Any) -> Any:
    """That part of what is given that the steps need."""

  def after(self, batches: Any, number: tf.Tensor | int) -> Any:
    """What `next` gets batches of, once steps have had so many of them."""

  def draw(self, strategy: tf.distribute.Strategy, batches: Any) -> Any:
    """A step's batch, or one for each of its replicas."""

  def read_ahead(self, given: Any) -> tuple[tf.Tensor, ...]:
    """What to return, too; the last is a vector that goes to the others."""

  def end(self, given: Any, counted: tf.Tensor) -> Sequence[tf.Operation]:
    """What to do once steps are applied, and so many count."""


@dataclasses.dataclass(frozen=True)
class Iterated:
  """An iterator over batches, which does not end, or one for each worker.

  Attributes:
    spec: its type, or theirs.
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
  """A function of a source of batches that does some steps.

  Attributes:
    function: returns, last of all, the mean of each metric and the bytes that
      have crossed, as one vector, so that a single tensor comes back. It gets
      an id, too, if it marks its steps; see `tfps.marks`.
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
  source: Source,
  *,
  global_step: tf.Variable,
  num_steps: int,
  max_unroll: int = MAX_UNROLL,
) -> Execution:
  """Builds an execution; to be called in the strategy's scope.

  Args:
    strategy: runs the step, in its replica context.
    step_fn: one step on a batch.
    source: of the batches.
    global_step: increased by `num_steps` once all steps have been applied.
    num_steps: how many steps to do.
    max_unroll: how many of them to lay out in the graph.
  """
  step = _Step(strategy, step_fn, source.draw)
  own = transfers.of(strategy)
  sync_session = session_lib.of(strategy)

  marked: set[int] = set()

  def course_of(*told: tf.Tensor) -> Course:
    if sync_session is None:
      return step_log_lib.marking(strategy, *told)
    return sync_session.sync_step(
      *told,
      count=lambda: global_step.assign_add(1),
      comes_and_goes=source.may_be_empty,
    )

  @tf.function
  def steps(batches: Any, *told: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    workspace = own.workspace()
    progress = course_of(*told)
    unrolled = own.unrolled(max_unroll) if sync_session is None else num_steps
    unroll = _Unroll(step, own, workspace, source, batches)
    total = _repeat(unroll, progress, num_steps, unrolled)
    marked.update(progress.marked)
    if isinstance(progress, step_sync.StaleSyncStep):
      with tf.control_dependencies(progress.written):
        global_step.assign_add(num_steps)
    num_bytes = tf.reshape(workspace.counted(), [-1])
    vector = [total / num_steps, tf.cast(num_bytes, total.dtype)]
    return tf.concat(vector, axis=0), step_sync.num_counted(progress, num_steps)

  def count_all(given: Any, counted: tf.Tensor, *id: tf.Tensor) -> None:
    counting = step_log_lib.marking(strategy, *id).step(num_steps + 1)
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
    else:  # whose updates count the steps
      vector, counted = sync_session.around(steps)(source.batches(given), *told)
      source.end(given, counted)
    return _with_ahead(ahead, vector, counted)

  if sync_session is not None:
    spec: Any = (session_lib.WORKER,)
  else:
    spec = step_log_lib.id_spec(strategy, num_steps)
  function = transfers.trace_until_stable(
    lambda: tf.function(execution).get_concrete_function(source.spec, *spec)
  )
  names = step.names or ()
  return Execution(function, names, num_steps, frozenset(marked))


def _with_ahead(
  ahead: tuple[tf.Tensor, ...], vector: tf.Tensor, counted: tf.Tensor
) -> Any:
  """What a function returns, as `Source.read_ahead` has it."""
  if not ahead:
    return vector
  *others, last = ahead
  tail = [tf.cast(last, vector.dtype), [tf.cast(counted, vector.dtype)]]
  return *others, tf.concat([vector, *tail], axis=0)


class _Step:
  """One step, its metrics as a vector; knows their names once traced."""

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
    batch = self._draw(self._strategy, batches)
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
    merged = {
      n: step_replicas.merge_scalars(self._strategy, metrics[n]) for n in names
    }
    return _stack([_scalar(n, v) for n, v in merged.items()])


@dataclasses.dataclass(frozen=True)
class _Unroll:
  """Lays out steps in the graph; gives the sum of their metrics."""

  step: _Step
  own: transfers.Transfers
  workspace: Any
  source: Source
  batches: Any

  def __call__(
    self, number: int, progress: Course, done: tf.Tensor | int = 0
  ) -> tf.Tensor:
    is_alone = isinstance(
      progress, step_log_lib.Marking | step_log_lib.Unmarked
    )
    sync_step = None if is_alone else progress
    steps = self.own.steps(self.workspace, number, sync_step)
    batches = self.source.after(self.batches, done)
    totals = []
    for i in range(number):
      with progress.step(i + 1), steps.step():
        totals.append(self.step(batches))
    return sum(totals[1:], totals[0])


def _repeat(
  unroll: _Unroll,
  progress: Course,
  num_steps: int,
  max_unroll: int,
) -> tf.Tensor:
  """The sum of the metrics of so many steps."""
  loops, rest = divmod(num_steps, max_unroll)
  first = rest or max_unroll
  total = unroll(first, progress)
  loops = loops if rest else loops - 1

  def go_on(i: tf.Tensor, total: tf.Tensor) -> Any:
    done = first + i * max_unroll
    later = progress.after(done)
    return i + 1, total + unroll(max_unroll, later, done)

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
