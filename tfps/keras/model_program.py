"""Traces steps of a Keras model into functions that workers execute."""

from collections.abc import Callable
from collections.abc import Sequence
import contextlib
import dataclasses
import functools
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfps._compat import execution_variables
from tfps._compat import functions
from tfps._compat import writes
from tfps._utils import garbage
from tfps.input import sources
from tfps.keras import batch_structures
from tfps.keras import metric_additivity
from tfps.keras import metric_state as metric_state_lib
from tfps.keras import step_logs
from tfps.training import step_loop
from tfps.training import step_program
from tfps.training import unrolling as unrolling_lib
from tfps.updates import sessions
from tfps.variables import step_replicas
from tfps.wire import transfers

StepFn = Callable[[Any], Any]


@dataclasses.dataclass
class Result:
  """The result of an execution.

  Attributes:
    metrics: the values that each step added to the metrics, a row for each.
    carried: a vector of the values carried to the next execution.
    num_bytes: the bytes that were transferred, by direction and ps.
    logs: the values that the last step returned, by name.
  """

  metrics: np.ndarray
  carried: np.ndarray
  num_bytes: np.ndarray
  logs: dict[str, np.ndarray]


class NotAdditiveError(Exception):
  """Metrics are not additive; functions have to be traced again."""


class Executions:
  """Makes functions that do several steps of a model each.

  Args:
    model: the model; its strategy runs the steps in its replica context.
    step_fn: the model's `train_step` or `test_step`.
    state: the model's metrics and seeds.
    sync_session: logs the steps, or synchronizes the workers.

  Attributes:
    unrolling: decides when the steps of full executions are unrolled.
  """

  def __init__(
    self,
    model: keras.Model,
    step_fn: StepFn,
    state: metric_state_lib.State,
    sync_session: sessions.Session,
  ) -> None:
    self._model = model
    self._sync_session = sync_session
    self._strategy = model.distribute_strategy
    self._transfers = transfers.of(self._strategy)
    self.unrolling = unrolling_lib.Unrolling(self._transfers)
    self._step_fn = functions.python_function(step_fn)
    self._state = state
    self._logs: list[step_logs.Log] = []
    self._num_counted = 0
    self._functions: dict[Any, Any] = {}
    self._on_iterators: dict[step_loop.Form, tuple[Any, Any]] = {}

  def form(self, num_steps: int) -> step_loop.Form:
    """Returns the form of an execution of a number of steps.

    Args:
      num_steps: the number; at most the model's `steps_per_execution`.
    """
    return self.unrolling.form(num_steps, self._model.steps_per_execution)

  def on_batches(
    self,
    form: step_loop.Form,
    batches: Any,
    tracing: Callable[[], contextlib.AbstractContextManager[Any]],
  ) -> Any:
    """Returns a function of batches, their number and the carried values.

    Args:
      form: how the steps are laid out.
      batches: batches that `batch_structures.stack` made. The function takes
        any number of the same kind. If a step has several replicas, each batch
        is a tuple of pieces.
      tracing: returns a context in which to trace the function, which is
        entered for the first batches of a kind.
    """
    spec = batch_structures.spec_of(batches)
    key = 'batches', form, repr(spec)  # a nest of types has no hash
    if key not in self._functions:
      execute = self._execution(
        form,
        after=batch_structures.unstack,
        draw=lambda left: step_replicas.weight_batches(
          self._strategy, next(left)
        ),
      )
      with tracing():
        self._functions[key] = self._traced('batches', form, spec, execute)
    return self._functions[key]

  def on_iterator(
    self,
    form: step_loop.Form,
    spec: Any,
    tracing: Callable[[], contextlib.AbstractContextManager[Any]],
  ) -> Any:
    """Returns a function of an iterator, a number and the carried values.

    Args:
      form: how the steps are laid out.
      spec: type of the iterator. The same object names the same function,
        which takes less time than to compare types at each step.
      tracing: as for `on_batches`.
    """
    last, function = self._on_iterators.get(form, (None, None))
    if last is spec:
      return function
    execute = self._execution(
      form,
      after=lambda batches, done: batches,
      draw=functools.partial(step_replicas.next_batch, self._strategy),
    )
    with tracing():
      function = self._traced('iterator', form, spec, execute)
    self._on_iterators[form] = spec, function
    return function

  def on_source(self, source: sources.Source, num_steps: int) -> Any:
    """Returns a function of a source's input and the carried values.

    It returns the values of `source.read_ahead`, then those of an execution.
    The last of the former and the number of steps that count are appended to
    the execution's vector.

    Args:
      source: provides the batches.
      num_steps: how many steps to do.
    """
    form = self.unrolling.form(num_steps, num_steps)
    execute = self._execution(
      form,
      after=source.after,
      draw=functools.partial(source.draw, self._strategy),
      comes_and_goes=source.may_be_empty,
      is_counted=True,
    )
    function = self._sync_session.around(_function(execute))

    def around(given: Any, carried: Any, *ids: tf.Tensor) -> Any:
      ahead = source.read_ahead(given)
      batches = source.batches(given)
      vector, others, counted = function(
        batches, tf.constant(num_steps), carried, *ids
      )
      # A function's result waits for all its updates.
      with tf.control_dependencies([counted]):
        ended = source.end(given, counted)
      with tf.control_dependencies(ended):
        tail = [tf.cast(last, vector.dtype) for last in ahead[-1:]]
        tail.append([tf.cast(counted, vector.dtype)])
        return *ahead[:-1], tf.concat([vector, *tail], axis=0), others

    _, *specs = self._specs(form)
    with garbage.looked_for_rarely():
      return _function(around).get_concrete_function(source.spec, *specs)

  def forget(self) -> None:
    """Drops all functions, so that they are traced again."""
    self._functions.clear()
    self._on_iterators.clear()

  def result(self, fetched: Any, num_steps: int) -> Result:
    """Unpacks the values that a function of `num_steps` steps returned."""
    vector, others = fetched
    num_added, num_carried = self._state.sizes
    sizes = [
      num_steps * num_added,
      num_carried,
      self._num_counted,
      *(log.size for log in self._logs),
    ]
    added, carried, counted, *packed = np.split(
      np.asarray(vector), np.cumsum(sizes)[:-1]
    )
    rest = iter(others)
    logs = {
      log.name: np.asarray(next(rest))
      if log.shape is None
      else piece.reshape(log.shape).astype(log.dtype.as_numpy_dtype)
      for log, piece in zip(self._logs, packed, strict=True)
    }
    return Result(
      added.reshape([num_steps, -1]),
      carried,
      counted.reshape([2, -1]).astype(np.int64),
      logs,
    )

  def carried(self, fetched: Any, num_steps: int) -> list[np.ndarray]:
    """Returns the carried values that such a function returned."""
    return self._state.unpack(self.result(fetched, num_steps).carried)

  def _specs(self, form: step_loop.Form) -> tuple[Any, ...]:
    """Returns the types of a function's arguments after its batches."""
    told = self._sync_session.specs(is_logged=form.is_logged)
    return step_program.NUMBER, self._state.carried_spec, *told

  def _traced(
    self, kind: str, form: step_loop.Form, spec: Any, execute: Any
  ) -> Any:
    """Returns a function of inputs of a type, traced unless it has been."""
    function = self._function((kind, form), execute)
    with garbage.looked_for_rarely():
      return function.get_concrete_function(spec, *self._specs(form))

  def _function(self, key: Any, execute: Any) -> Any:
    if key not in self._functions:
      function = _function(execute)
      if self._sync_session.waits:
        function = _function(self._sync_session.around(function))
      self._functions[key] = function
    return self._functions[key]

  def _execution(
    self,
    form: step_loop.Form,
    *,
    after: Callable[[Any, tf.Tensor | int], Any],
    draw: Callable[[Any], Any],
    comes_and_goes: bool = False,
    is_counted: bool = False,
  ) -> Callable[..., Any]:
    """Returns a function to be traced, of batches, their number and the rest.

    Args:
      form: how the steps are laid out.
      after: returns the batches after a number of steps.
      draw: returns the batch of a step from the result of `after`.
      comes_and_goes: whether workers take part only while they have batches.
      is_counted: whether the function also returns how many steps count.
    """

    def execute(
      batches: Any, number: tf.Tensor, carried: Any, *ids: tf.Tensor
    ) -> Any:
      workspace = self._transfers.workspace()
      logs = step_logs.Logs(self._strategy)

      def step(left: Any) -> tf.Tensor:
        self._state.begin_step()
        first = writes.num_operations()
        logs.keep(self._strategy.run(self._step_fn, args=(draw(left),)))
        self._check(handles, first)
        return step_replicas.counted(self._strategy, self._state.end_step())

      with execution_variables.copies(self._state.variables) as handles:
        self._state.begin_execution(carried)
        rows, context = step_loop.repeat(
          step,
          form,
          number,
          own=self._transfers,
          workspace=workspace,
          stepper=self._sync_session.sync_step(
            *ids, comes_and_goes=comes_and_goes
          ),
          after=functools.partial(after, batches),
          note_size=self.unrolling.note_size,
        )
        carried = self._state.end_execution()
      if self._state.sizes[0]:
        rows = self._sync_session.sum_rows(rows, context)
      counted = workspace.counted()
      self._num_counted = counted.shape.num_elements()
      self._logs = logs.logs
      packed, others = logs.read()
      vectors = [rows, carried, counted, packed]
      flat = [tf.reshape(tf.cast(v, tf.float64), [-1]) for v in vectors]
      result = tf.concat(flat, axis=0), others
      if is_counted:
        return *result, context.num_counted(number)
      return result

    return execute

  def _check(self, handles: Sequence[tf.Tensor], first: int) -> None:
    """Checks that the traced step only adds to additive metrics.

    Raises:
      NotAdditiveError: it does not; the state has recorded which are not.
    """
    graph: Any = tf.compat.v1.get_default_graph()
    metrics = self._state.metrics
    are_additive = metric_additivity.find(
      [graph.capture(handle) for handle in handles[: len(metrics)]],
      graph.get_operations()[first:],
    )
    wrong = [
      variable
      for variable, is_additive in zip(metrics, are_additive, strict=True)
      if not is_additive
    ]
    if wrong:
      self._state.chain(wrong)
      raise NotAdditiveError


def _function(execute: Any) -> Any:
  return tf.function(
    tf.autograph.experimental.do_not_convert(execute), reduce_retracing=True
  )


def check(model: keras.Model) -> None:
  """Checks that a model's steps can run in graphs with remote variables.

  Raises:
    ValueError: the model is compiled to run eagerly or by XLA.
  """
  for name in ('jit_compile', 'run_eagerly'):
    if getattr(model, name):
      raise ValueError(
        f'{model.name}: compiled with {name}=True, but its steps run in graphs '
        'whose variables are on other tasks. Compile it with '
        f'{name}=False.'
      )
