"""Step programs: functions of several training steps.

A worker is called once for several steps. A step is traced once, into the body
of a loop whose number of iterations is an argument of the function. Where steps
depend on each other beyond the variables, as those of one update or those that
prefetch, the body has several.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import functools
from typing import Any

import numpy as np
import tensorflow as tf

from tfps._compat import autograph
from tfps._compat import functions
from tfps._utils import garbage
from tfps.input import sources
from tfps.monitor import registry as registry_lib
from tfps.training import step_loop
from tfps.training import unrolling as unrolling_lib
from tfps.updates import sessions
from tfps.variables import step_replicas
from tfps.wire import transfers

StepFn = Callable[[Any], Mapping[str, Any] | None]

# Name of the number of examples among a step's metrics. It is counted if
# somebody reads this process' metrics when the step is traced.
_NUM_EXAMPLES = 'tfps/num_examples'

# Number of steps of an execution.
NUMBER = tf.TensorSpec([], tf.int32)


@dataclasses.dataclass(frozen=True)
class Execution:
  """Traced function, and how many steps it is to do on the batches of a source.

  Attributes:
    function: gets `args`. Its last result is a single vector, to be fetched at
      once: the global step afterwards, the mean of each metric, and the bytes
      that were transferred.
    names: the metrics' names, in the order of the vector.
    num_steps: how many steps it does.
    is_logged: whether the function has an id; see `step_log`.
    marked: the ring buffers to which the steps are logged; see `step_log`.
  """

  function: Any
  names: tuple[str, ...]
  num_steps: int
  is_logged: bool
  marked: frozenset[int]

  def args(self, given: Any, *told: Any) -> tuple[Any, ...]:
    """Returns the function's arguments.

    Args:
      given: the source's input.
      *told: an id if the steps are logged, or the worker's number if they are
        synchronized.
    """
    return given, tf.constant(self.num_steps), *told

  def step_after(self, vector: Sequence[float]) -> int:
    """Returns the global step in the function's vector."""
    return int(vector[0])

  def metrics(self, vector: Sequence[float]) -> dict[str, float]:
    """Returns the metrics in the function's vector."""
    named = zip(self.names, vector[1:], strict=False)
    return {n: float(v) for n, v in named if n != _NUM_EXAMPLES}

  def num_examples(self, vector: Sequence[float], num_steps: int) -> int:
    """Returns the number of examples of all steps; 0 if it is not counted.

    Args:
      vector: the function's.
      num_steps: how many steps it has done.
    """
    if _NUM_EXAMPLES not in self.names:
      return 0
    mean = vector[1 + self.names.index(_NUM_EXAMPLES)]
    return round(mean * num_steps)

  def num_bytes(self, vector: Sequence[float]) -> np.ndarray:
    """Returns the bytes in the function's vector, of shape [2, ps].

    The first row is what was pulled from each ps, the second what was pushed.
    """
    return np.reshape(vector[1 + len(self.names) :], [2, -1]).astype(np.int64)

  def join(self, vectors: Sequence[Sequence[float]]) -> np.ndarray:
    """Returns the vector of some executions, one after another.

    Args:
      vectors: theirs, one or more; each is of as many steps.
    """
    stacked = np.stack(vectors)
    steps, metrics, num_bytes = np.split(
      stacked, [1, 1 + len(self.names)], axis=1
    )
    return np.concatenate(
      [steps[-1], np.mean(metrics, axis=0), np.sum(num_bytes, axis=0)]
    )


class StepProgram:
  """Program of a step, which traces an execution for each form.

  Args:
    strategy: runs the step, in its replica context.
    step_fn: does one step on a batch; returns scalar metrics by name, or None.
    source: the source of the batches.
    global_step: increased by the number of steps once all have been applied.
    full: how many steps a full execution has.

  Attributes:
    unrolling: decides when the steps of full executions are unrolled.
  """

  def __init__(
    self,
    strategy: tf.distribute.Strategy,
    step_fn: StepFn,
    source: sources.Source,
    *,
    global_step: tf.Variable,
    full: int,
  ) -> None:
    self._strategy = strategy
    self._step_fn = step_fn
    self._source = source
    self._global_step = global_step
    self._full = full
    self._executions: dict[step_loop.Form, Execution] = {}
    self.unrolling = unrolling_lib.Unrolling(transfers.of(strategy))

  def execution(self, num_steps: int) -> Execution:
    """Returns the execution of a number of steps.

    Raises:
      TypeError: `step_fn` does not return metrics by name, or uses a tensor of
        an earlier trace.
      ValueError: a metric is not a scalar.
    """
    try:
      return self._traced(num_steps)
    except step_loop.OutOfScopeError as error:
      if not self.unrolling.give_up(error):
        raise
      return self._traced(num_steps)

  def _traced(self, num_steps: int) -> Execution:
    form = self.unrolling.form(num_steps, self._full)
    if form not in self._executions:
      with self._strategy.scope():
        self._executions[form] = trace(
          self._strategy,
          self._step_fn,
          self._source,
          global_step=self._global_step,
          num_steps=num_steps,
          form=form,
          note_size=self.unrolling.note_size,
        )
    return dataclasses.replace(self._executions[form], num_steps=num_steps)


def trace(
  strategy: tf.distribute.Strategy,
  step_fn: StepFn,
  source: sources.Source,
  *,
  global_step: tf.Variable,
  num_steps: int,
  form: step_loop.Form,
  note_size: Callable[[int], object] = lambda size: None,
) -> Execution:
  """Traces an execution; see `StepProgram` and `step_loop.repeat`."""
  step = _Step(strategy, functions.python_function(step_fn), source.draw)
  own = transfers.of(strategy)
  sync_session = sessions.of(strategy)

  marked: set[int] = set()

  @tf.function(autograph=False)
  def steps(
    batches: Any, number: tf.Tensor, *told: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor]:
    workspace, total = own.workspace(), tf.cast(number, tf.int64)
    rows, stepper = step_loop.repeat(
      step,
      form,
      number,
      own=own,
      workspace=workspace,
      stepper=sync_session.sync_step(
        *told,
        count=lambda: global_step.assign_add(1),
        comes_and_goes=source.may_be_empty,
      ),
      after=functools.partial(source.after, batches),
      note_size=note_size,
    )
    marked.update(stepper.marked)
    stepper.count_together(lambda: global_step.assign_add(total))
    num_bytes = tf.reshape(workspace.counted(), [-1])
    vector = [tf.reduce_mean(rows, axis=0), tf.cast(num_bytes, rows.dtype)]
    return tf.concat(vector, axis=0), stepper.num_counted(number)

  def count_all(
    given: Any,
    total: tf.Tensor,
    last: tf.Tensor,
    counted: tf.Tensor,
    *told: tf.Tensor,
  ) -> None:
    counting = sync_session.sync_step(*told).step(last)
    # A function's result waits for all its updates.
    with (
      tf.control_dependencies([counted]),
      counting,
      tf.control_dependencies(source.end(given, counted)),
    ):
      global_step.assign_add(total)

  def execution(given: Any, number: tf.Tensor, *told: tf.Tensor) -> Any:
    ahead = source.read_ahead(given)
    batches = source.batches(given)
    if not sync_session.waits:
      # Sent to the ps before the steps: once these are applied, the ps counts
      # them without the worker, which may be lost.
      total = tf.cast(number, tf.int64)
      last = total + 1
      vector, counted = steps(batches, number, *told)
      count_all(given, total, last, counted, *told)
    else:  # synchronous updates count the steps
      vector, counted = sync_session.around(steps)(batches, number, *told)
      source.end(given, counted)
    # The message that says that the steps were counted has the step, too.
    with tf.control_dependencies([counted]):
      step = tf.cast(global_step.read_value(), vector.dtype)
    vector = tf.concat([[step], vector], axis=0)
    return _with_ahead(ahead, vector, counted)

  spec = sync_session.specs(is_logged=form.is_logged)
  with garbage.looked_for_rarely():
    function = transfers.trace_until_stable(
      lambda: tf.function(execution, autograph=False).get_concrete_function(
        source.spec, NUMBER, *spec
      )
    )
  return Execution(
    function, step.names, num_steps, form.is_logged, frozenset(marked)
  )


def _with_ahead(
  ahead: tuple[tf.Tensor, ...], vector: tf.Tensor, counted: tf.Tensor
) -> Any:
  """Returns a function's results with those of `sources.Source.read_ahead`."""
  if not ahead:
    return vector
  *others, last = ahead
  tail = [tf.cast(last, vector.dtype), [tf.cast(counted, vector.dtype)]]
  return *others, tf.concat([vector, *tail], axis=0)


class _Step:
  """One step, whose result is the vector of its metrics.

  Attributes:
    counts_examples: whether examples are counted, which is so if somebody
      reads metrics of the process as the step is made.
  """

  def __init__(
    self,
    strategy: tf.distribute.Strategy,
    step_fn: StepFn,
    draw: Callable[[tf.distribute.Strategy, Any], Any],
  ) -> None:
    self.counts_examples = registry_lib.of_process().is_read
    self._strategy = strategy
    self._step_fn = step_fn
    self._draw = draw
    self._returned: tuple[str, ...] | None = None  # names, once it is traced

  @property
  def names(self) -> tuple[str, ...]:
    """Names of the metrics in the vector, once the step was traced."""
    return (*(self._returned or ()), *[_NUM_EXAMPLES] * self.counts_examples)

  def __call__(self, batches: Any) -> tf.Tensor:
    with autograph.enabled():
      batch = self._draw(self._strategy, batches)
      metrics = self._strategy.run(self._step_fn, args=(batch,))
    return self._vector(metrics, batch)

  def _vector(self, metrics: Mapping[str, Any] | None, batch: Any) -> tf.Tensor:
    if not isinstance(metrics, Mapping | None):
      raise TypeError(
        f'step_fn: returned {metrics!r}; return metrics by name, or None.'
      )
    metrics = metrics or {}
    merged = {
      n: step_replicas.merge_scalars(self._strategy, v)
      for n, v in metrics.items()
    }
    names = tuple(merged)
    if self._returned not in (None, names):
      raise ValueError(
        f'step_fn: returned metrics {names} after {self._returned}. Return '
        'those of the same names each time.'
      )
    self._returned = names
    if self.counts_examples:
      merged[_NUM_EXAMPLES] = step_replicas.num_examples(batch)
    return _stack([_scalar(n, v) for n, v in merged.items()])


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
