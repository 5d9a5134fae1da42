"""Ways to train a model, ours and others, in executions of many steps.

Each gives a function that does a number of steps and waits for them. Where
there is a coordinator, all executions of a call are scheduled at once.
"""

from collections.abc import Callable
import functools
from typing import Any

import keras
import tensorflow as tf

from benchmarks import learned
from benchmarks import lookup
from benchmarks import perceptron
import tfps
from tfps.input import per_worker
from tfps.training import attempts
from tfps.training import step_log as step_log_lib
from tfps.training import step_program

STEPS_PER_EXECUTION = 20
HYBRID_STEPS_PER_EXECUTION = 8

Model = perceptron.Perceptron | lookup.Lookup | learned.Learned
Run = Callable[[int], None]
Step = Callable[[Any], Any]

_TIMEOUT_SECS = 300.0


def stock(
  cluster: tfps.Cluster,
  model: perceptron.Perceptron,
  *,
  unrolled: bool,
  steps_per_execution: int = STEPS_PER_EXECUTION,
) -> Run:
  """TensorFlow's own strategy and coordinator.

  Args:
    cluster: of which this process is the chief.
    model: what to train.
    unrolled: whether the steps of an execution are laid out one after another
      in its graph; else it has a loop.
    steps_per_execution: how many steps a worker does at a time.
  """
  strategy = tf.distribute.ParameterServerStrategy(cluster.resolver())
  coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
  with strategy.scope():
    step = _descent(model, model.variables())

  @tf.function
  def execute(iterator: tf.data.Iterator) -> None:
    number = steps_per_execution
    for _ in range(number) if unrolled else tf.range(number):
      strategy.run(step, args=(next(iterator),))

  dataset = coordinator.create_per_worker_dataset(
    lambda: strategy.distribute_datasets_from_function(model.dataset)
  )
  return _scheduling(coordinator, execute, iter(dataset), steps_per_execution)


class Ours:
  """The strategy and coordinator of tfps.

  Args:
    cluster: of which this process is the chief.
    model: what to train.
    wire: as for the strategy.
    updates: likewise.
    recovery: likewise.
    steps_per_execution: how many steps a worker does at a time.
  """

  def __init__(
    self,
    cluster: tfps.Cluster,
    model: Model,
    *,
    wire: tfps.Wire | None = None,
    updates: Any = None,
    recovery: tfps.Recovery | None = None,
    steps_per_execution: int = STEPS_PER_EXECUTION,
  ) -> None:
    self._strategy = tfps.ParameterServerStrategy(
      cluster, wire=wire, updates=updates, recovery=recovery
    )
    self._coordinator = tfps.Coordinator(
      self._strategy, timeout_secs=_TIMEOUT_SECS
    )
    self._model = model
    self._steps_per_execution = steps_per_execution
    with self._strategy.scope():
      self.variables = model.variables()

  def training(self) -> Run:
    """Trains."""
    with self._strategy.scope():
      step = _with_optimizer(self._model, self.variables)
    return self.repeating(step)

  def repeating(self, step: Step) -> Run:
    """Does any steps on the model's data."""
    iterators, spec = per_worker.iterators(
      self._coordinator, self._model.dataset
    )
    coordinator, number = self._coordinator, self._steps_per_execution
    global_step = coordinator.global_step
    to_do = _traced(self._strategy, step, spec, global_step, number)
    marks, counts = step_log_lib.of(self._strategy), None
    if marks is not None:
      with self._strategy.scope():
        counts = attempts.Counts(self._strategy, marks, global_step)

    def run(num_steps: int) -> None:
      for _ in range(num_steps // number):
        attempts.schedule(coordinator, to_do, iterators, counts)
      coordinator.join()

    return run


def between_graphs(
  cluster: tfps.Cluster, model: perceptron.Perceptron, wire: tfps.Wire
) -> Run:
  """The strategy of tfps of which each worker is a client."""
  strategy = tfps.BetweenGraphStrategy(cluster, wire=wire)
  with strategy.scope():
    step = _with_optimizer(model, model.variables())
  dataset = model.dataset(strategy.input_context())
  spec = tf.data.IteratorSpec(dataset.element_spec)
  execute = _traced(
    strategy, step, spec, strategy.global_step, STEPS_PER_EXECUTION
  )
  return _calling(execute.function, iter(dataset))


def hybrid(
  cluster: tfps.Cluster, model: Model, place: str | None
) -> tuple[Run, tfps.replication.HybridStrategy]:
  """Variables on the ps or with the workers, of which each does the steps.

  Args:
    cluster: with this process' task, a worker.
    model: what to train.
    place: where all variables that learn are to be; None for the rule's choice.

  Returns:
    What trains, and the strategy.
  """
  choose = None if place is None else lambda description: place
  strategy = tfps.replication.HybridStrategy(
    cluster, choose=choose, timeout_secs=_TIMEOUT_SECS
  )
  with strategy.scope():
    step = _with_optimizer(model, model.variables())
  dataset = model.dataset(strategy.input_context())
  iterator = iter(dataset)
  spec = tf.data.IteratorSpec(dataset.element_spec)
  number = HYBRID_STEPS_PER_EXECUTION
  to_do = _traced(strategy, step, spec, strategy.global_step, number)
  sync_session: Any = strategy.sync_session

  def execute(*id: tf.Tensor) -> Any:
    return to_do.function(iterator, *id).numpy()

  def run(num_steps: int) -> None:
    for _ in range(num_steps // number):
      attempt = sync_session.attempt(number)
      call = functools.partial(attempt, execute, *attempt.args)
      strategy.surviving(call)

  return run, strategy


def alone(model: perceptron.Perceptron) -> Run:
  """This process, without any strategy or server."""
  step = _descent(model, model.variables())

  @tf.function
  def execute(iterator: tf.data.Iterator) -> None:
    for _ in range(STEPS_PER_EXECUTION):
      step(next(iterator))

  return _calling(execute, iter(model.dataset(tf.distribute.InputContext())))


def _descent(
  model: perceptron.Perceptron, variables: list[tf.Variable]
) -> Step:
  """Gradient descent by one operation for each variable."""

  def step(x: tf.Tensor) -> None:
    gradients = model.gradients(variables, x)
    for variable, gradient in zip(variables, gradients, strict=True):
      variable.assign_sub(perceptron.RATE * gradient)

  return step


def _with_optimizer(model: Model, variables: list[tf.Variable]) -> Step:
  """By the model's own optimizer, or else by Keras' gradient descent."""
  if isinstance(model, learned.Learned):
    optimizer = model.optimizer
  else:
    optimizer = keras.optimizers.SGD(perceptron.RATE)
  optimizer.build(variables)

  def step(batch: Any) -> None:
    gradients = model.gradients(variables, batch)
    optimizer.apply_gradients(zip(gradients, variables, strict=True))

  return step


def _traced(
  strategy: tf.distribute.Strategy,
  step: Step,
  spec: Any,
  global_step: tf.Variable,
  num_steps: int,
) -> step_program.Execution:
  """What the training loops have done, without the time to trace it."""
  with strategy.scope():
    return step_program.trace(
      strategy,
      step,
      step_program.Iterated(spec),
      global_step=global_step,
      num_steps=num_steps,
    )


def _scheduling(
  coordinator: tf.distribute.coordinator.ClusterCoordinator,
  function: Any,
  iterators: Any,
  steps_per_execution: int,
) -> Run:
  def run(num_steps: int) -> None:
    for _ in range(num_steps // steps_per_execution):
      coordinator.schedule(function, args=(iterators,))
    coordinator.join()

  return run


def _calling(function: Any, iterator: tf.data.Iterator) -> Run:
  def run(num_steps: int) -> None:
    for _ in range(num_steps // STEPS_PER_EXECUTION):
      function(iterator)

  return run
