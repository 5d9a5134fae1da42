"""Ways to train a model, ours and others, in executions of many steps.

Each gives a function that does a number of steps and waits for them. Where
there is a coordinator, all executions of a call are scheduled at once.
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from benchmarks import learned
from benchmarks import lookup
from benchmarks import networks
from benchmarks import perceptron
import tfps
from tfps.input import sources
from tfps.training import executors
from tfps.training import step_program
from tfps.updates import attempts
from tfps.updates import sessions

STEPS_PER_EXECUTION = 20
HYBRID_STEPS_PER_EXECUTION = 8

Model = (
  perceptron.Perceptron | lookup.Lookup | learned.Learned | networks.Network
)
Run = Callable[[int], None]
Step = Callable[[Any], Any]

_TIMEOUT_SECS = 300.0


def stock(
  cluster: tfps.Cluster,
  model: perceptron.Perceptron | networks.Network,
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
    step = _as_stock(model, model.variables())

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
      cluster,
      model.partitioner if isinstance(model, networks.Network) else None,
      wire=wire,
      updates=updates,
      recovery=recovery,
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
    executor = self._coordinator.executor(_TIMEOUT_SECS)
    return _executing(
      executor,
      step,
      self._model.dataset,
      steps_per_execution=self._steps_per_execution,
      in_flight=2 * executor.num_workers,
    )


def between_graphs(cluster: tfps.Cluster, model: Model, wire: tfps.Wire) -> Run:
  """The strategy of tfps of which each worker is a client."""
  strategy = tfps.BetweenGraphStrategy(cluster, wire=wire)
  with strategy.scope():
    step = _with_optimizer(model, model.variables())
  return _executing(strategy.executor(None), step, model.dataset)


def all_reduce(cluster: tfps.Cluster, model: Model) -> Run:
  """The strategy of tfps whose workers add up gradients, without ps."""
  strategy = tfps.AllReduceStrategy(cluster, timeout_secs=_TIMEOUT_SECS)
  with strategy.scope():
    step = _with_optimizer(model, model.variables())
  return _executing(strategy.executor(None), step, model.dataset)


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
  run = _executing(
    strategy.executor(None),
    step,
    model.dataset,
    steps_per_execution=HYBRID_STEPS_PER_EXECUTION,
  )
  return run, strategy


def alone(model: perceptron.Perceptron | networks.Network) -> Run:
  """This process, without any strategy or server."""
  step = _as_stock(model, model.variables())

  @tf.function
  def execute(iterator: tf.data.Iterator) -> None:
    for _ in range(STEPS_PER_EXECUTION):
      step(next(iterator))

  return _calling(execute, iter(model.dataset(tf.distribute.InputContext())))


def _as_stock(
  model: perceptron.Perceptron | networks.Network,
  variables: list[tf.Variable],
) -> Step:
  """A step without Keras 3, which does not know the stock strategy."""
  if not isinstance(model, networks.Network):
    return _descent(model, variables)
  import tf_keras

  return _applying(model, variables, model.optimizer(tf_keras))


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
  """A step by the model's own optimizer, or by Keras' gradient descent."""
  if isinstance(model, learned.Learned):
    optimizer = model.optimizer
  elif isinstance(model, networks.Network):
    optimizer = model.optimizer(keras)
  else:
    optimizer = keras.optimizers.SGD(perceptron.RATE)
  return _applying(model, variables, optimizer)


def _applying(
  model: Model, variables: list[tf.Variable], optimizer: Any
) -> Step:
  optimizer.build(variables)

  def step(batch: Any) -> None:
    gradients = model.gradients(variables, batch)
    optimizer.apply_gradients(zip(gradients, variables, strict=True))

  return step


def _executing(
  executor: executors.Executor,
  step: Step,
  dataset_fn: Callable[[tf.distribute.InputContext], tf.data.Dataset],
  *,
  steps_per_execution: int = STEPS_PER_EXECUTION,
  in_flight: int = 1,
) -> Run:
  """What a training loop does once it has found out that unrolling pays.

  Args:
    executor: executes the steps.
    step: to do on a batch.
    dataset_fn: makes a worker's batches.
    steps_per_execution: how many steps a worker does at a time.
    in_flight: how many executions are submitted at a time.
  """
  strategy, batches = executor.strategy, executor.batches(dataset_fn)
  sync_session = sessions.of(strategy)
  step_log = sync_session.step_log
  with executor.tracing():
    to_do = _unrolled(executor, step, batches.spec, steps_per_execution)
    counts = step_log and attempts.Counts(step_log, executor.global_step)

  def attempt() -> Any:
    if counts is not None:
      return attempts.Countable(counts, to_do)
    return sync_session.attempt(steps_per_execution, is_logged=to_do.is_logged)

  def run(num_steps: int) -> None:
    pending: list[Any] = []
    for left in reversed(range(num_steps // steps_per_execution)):
      pending.append(executor.submit(to_do, attempt(), batches))
      while len(pending) >= (in_flight if left else 1):
        for handle in executor.wait_any(pending):
          executor.fetch(handle)
          pending.remove(handle)

  return run


def _unrolled(
  executor: executors.Executor, step: Step, spec: Any, num_steps: int
) -> step_program.Execution:
  """An execution of which as many steps are unrolled as may be."""
  program = step_program.StepProgram(
    executor.strategy,
    step,
    sources.Iterated(spec),
    global_step=executor.global_step,
    full=num_steps,
  )
  program.execution(num_steps)  # a loop, which tells how large a step is
  program.unrolling.is_unrolled = True
  return program.execution(num_steps)


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
