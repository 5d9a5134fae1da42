"""One client whose graph spans all workers: synchronous by construction.

```
cluster = tfps.resolve_cluster()
if cluster.task.job in ('ps', 'worker'):
  return tfps.serve(cluster)
strategy = tfps.replication.InGraphStrategy(cluster)  # in the chief
with strategy.scope():
  model = build_model()
  model.compile('adagrad', 'mse')
model.fit(dataset)
```
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import os
import time
from typing import Any
from typing import TypeVar

import tensorflow as tf

from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib
from tfps.cluster import topology
from tfps.input import iterators
from tfps.input import joint_readers as input_joint
from tfps.input import per_worker
from tfps.server import task_monitor
from tfps.strategies import parameter_server as parameter_server_lib
from tfps.training import checkpoints as checkpoints_lib
from tfps.training import hooks as hooks_lib
from tfps.training import progress as progress_lib
from tfps.training import replica_loop
from tfps.training import step_program
from tfps.training import train_spec
from tfps.updates import policies
from tfps.variables import extended
from tfps.variables import placement as placement_lib

_Result = TypeVar('_Result')


class _Extended(extended.Extended):
  """Traces steps into functions that this process calls."""

  def _resource_creator_scope(self) -> Any:
    return []  # lookup tables stay in the chief, without a coordinator


class InGraphStrategy(parameter_server_lib.ParameterServerStrategy):
  """In-graph replication, as in TensorFlow 1's guide to distribution.

  The program runs in the chief. Each training step is one graph, which has a
  replica of the model's computation on each worker, with a batch of its own,
  and one update. Each worker pulls the parameters and pushes its gradients; the
  ps take their mean, and apply the optimizer to it once. There are no queues
  and no locks, and no worker is ahead: a step is done when all have done it.

  Ps and workers run `tfps.serve`. One graph cannot go on without one of them:
  when a task is lost, whatever is being executed raises an error that names it.
  A program that is started again goes on from its checkpoint.

  A worker with several GPUs, or without any but with several logical CPUs, has
  a replica on each; see `ParameterServerStrategy` about batches and losses.

  Source: "In-graph replication" in TensorFlow 1's "Distributed TensorFlow";
  `tf.compat.v1.train.replica_device_setter` puts variables likewise.

  Args:
    cluster: a `tfps.Cluster`, or a `tf.distribute.cluster_resolver`.
      `Cluster.local()` gets one ps and one worker within this process.
    variable_partitioner: how variables are cut into shards; see
      `tfps.partitioners`. By default they are not.
    placement: which ps gets which variable; see `tfps.placement`. By default
      `ByteBalanced()`.
    timeout_secs: how long a ps or a worker may be silent, as when it is frozen,
      before what waits for it raises an error.
    by_host: whether the workers of a host add up their gradients on the first
      of them, which pushes the sum to those ps that are on other hosts. So the
      host's link carries one gradient instead of one for each worker. Where
      links are faster than processes of a host are with each other, it takes
      time.
    host_of: the host of a task such as 'ps:0'. By default, and for tasks that
      it leaves out, that in the cluster's address.
    connect_timeout_secs: how long to wait for all ps and workers to answer.

  Raises:
    errors.UnreachableError: names the tasks that did not answer in time, or
      at whose addresses other tasks answered.
    errors.ServerStartError: the chief's port is in use.
    errors.ClusterMismatchError: a task holds another idea of the cluster.
    ValueError: the cluster has no ps or no worker, workers have different
      numbers of devices, `timeout_secs` is not above 0, or `host_of` names a
      task that there is not.
  """

  # See `ParameterServerStrategy`.
  keras_functions = 'tfps.keras.in_graph_functions'

  _make_extended = _Extended
  _steps_span_workers = True
  takes_coordinator = False

  # Here the chief does all that a client does by itself.
  task = spec_lib.Task('chief', 0)
  is_chief = True
  num_interruptions = 0

  def __init__(
    self,
    cluster: Any,
    variable_partitioner: Callable[..., Sequence[int]] | None = None,
    *,
    placement: placement_lib.Placement | None = None,
    timeout_secs: float = 30.0,
    by_host: bool = True,
    host_of: Mapping[str, str] | None = None,
    connect_timeout_secs: float = 120.0,
  ) -> None:
    if not timeout_secs > 0:
      raise ValueError(
        f'InGraphStrategy: timeout_secs is {timeout_secs!r}. Give a number of '
        'seconds above 0.'
      )
    self._host_of, self._is_by_host = host_of, by_host
    self.hosts: Mapping[spec_lib.Task, str] = {}
    super().__init__(
      cluster,
      variable_partitioner,
      placement=placement,
      connect_timeout_secs=connect_timeout_secs,
    )
    self._timeout_secs = timeout_secs
    self._monitor = task_monitor.TaskMonitor(self.addresses(), dict)
    self._looked_at = -timeouts.current().probe_every_secs
    self._global_step: tf.Variable | None = None
    # It would have a coordinator call the steps.
    self.extended._allow_run_without_coordinator = True

  @property
  def global_step(self) -> tf.Variable:
    """A scalar int64 on a ps: the steps that `train` has applied."""
    if self._global_step is None:
      with self.scope():
        self._global_step = tf.Variable(
          0, dtype=tf.int64, trainable=False, name='global_step'
        )
    return self._global_step

  def train(
    self,
    step_fn: step_program.StepFn,
    dataset_fn: per_worker.DatasetFn,
    *,
    steps: int | None = None,
    steps_per_execution: int = 1,
    max_unroll: int = step_program.MAX_UNROLL,
    checkpoint: Any = None,
    directory: str | os.PathLike[str] | None = None,
    checkpoint_every_secs: float | None = None,
    checkpoint_every_steps: int | None = None,
    max_to_keep: int = 3,
    hooks: Sequence[hooks_lib.Hook] = (),
    log_every_secs: float = 10.0,
    stop_on_nan: bool = True,
  ) -> progress_lib.TrainResult:
    """Trains until the global step reaches a number.

    A step is one of all workers, each on the next batch of its own dataset,
    whose mean gradient makes one update. If each worker's loss is a mean over a
    batch of n examples, that is a step of one process on the n examples of each
    worker together.

    At the end of what a queue has to share out, fewer batches may be left than
    there are replicas. A step then takes half of their number, or a quarter,
    and so on, and is the mean of those: of the first replicas, to which batches
    of other workers go.

    Args:
      step_fn: takes a batch; computes a gradient, has an optimizer apply it and
        returns scalar metrics by name, or None. Traced once for each worker.
        What `optimizer.apply` gets is the mean over all workers.
      dataset_fn: makes the dataset of one worker, on that worker; called once
        for each, with `input_pipeline_id` the worker's index. The dataset must
        not run out: `repeat()` it. If it takes what it reads from a
        `tfps.input.SplitQueue`, it makes the batches of one split, which must
        not be repeated.
      steps: where to stop, counted from the beginning of training, not of this
        call: after a resume, only what is left is done. Training ends before
        when all that a queue has to share out is done; None: then alone.
      steps_per_execution: how many steps a call of the graph does.
      max_unroll: how many of them to lay out in one graph; beyond it a loop
        goes over them. Fewer are traced faster, more are executed faster.
      checkpoint: what to save: a `tf.train.Checkpoint`, model or other
        trackable. The global step is saved with it as `global_step`.
      directory: where to save it, and to resume from when it has checkpoints.
      checkpoint_every_secs: how often to save besides at the end.
      checkpoint_every_steps: likewise, rounded up to whole executions.
      max_to_keep: how many checkpoints to keep.
      hooks: called with a `hooks.Progress` at the beginning, after each
        execution and at the end.
      log_every_secs: how often to log progress.
      stop_on_nan: whether a metric that is not a number is an error, raised
        before the next checkpoint; otherwise it is logged.

    Returns:
      Where training stands. Metrics are means over the workers.

    Raises:
      errors.UnreachableError: names a task that has ended.
      errors.DeadlineError: names a task that is frozen.
      errors.CheckpointError: the latest checkpoint is damaged, or one cannot
        be written, for example because the disk is full.
      errors.InputError: names a split that cannot be read.
      FloatingPointError: a metric is not a number.
      ValueError: a dataset ran out, or an argument is wrong.
    """
    plan = train_spec.TrainSpec(
      train_spec.ENDLESS if steps is None else steps,
      steps_per_execution=steps_per_execution,
      max_unroll=max_unroll,
      stop_on_nan=stop_on_nan,
    )
    saving = checkpoints_lib.Saving(
      checkpoint,
      directory,
      every_secs=checkpoint_every_secs,
      every_steps=checkpoint_every_steps,
      max_to_keep=max_to_keep,
    )
    course = progress_lib.TrainProgress(
      plan, hooks, log_every_secs=log_every_secs
    )
    loop = replica_loop.ReplicaLoop(self, course, saving)
    return loop.run(step_fn, dataset_fn)

  def surviving(self, function: Callable[[], _Result]) -> _Result:
    """The function's result, as long as all ps and workers are there.

    For what a program calls by itself: `strategy.surviving(lambda: step())`.
    `train` and Keras' `fit` do so.

    Raises:
      errors.UnreachableError: names the tasks that have ended, or have been
        started again.
      errors.DeadlineError: names the tasks that are frozen.
    """
    now = time.monotonic()
    if now > self._looked_at + timeouts.current().probe_every_secs:
      # A function that has yet to be traced is sent to all tasks, and one that
      # is frozen would have that hold the interpreter's lock.
      self._monitor.wait_while_hung('InGraphStrategy', self._timeout_secs)
      self._looked_at = now
    return self._monitor.follow('InGraphStrategy', function, self._timeout_secs)

  def batches(self, dataset_fn: per_worker.DatasetFn) -> 'Iterators':
    """The batches of the workers, for `train`.

    Raises:
      ValueError: the workers' datasets have elements of different types.
    """
    return self.surviving(lambda: Iterators(self, dataset_fn))

  def readers(
    self, dataset_fn: per_worker.DatasetFn
  ) -> input_joint.JointReaders:
    """Where the batches of the workers come from if there is a queue.

    Raises:
      ValueError: as `batches`, or the queue's progress is that of others.
    """
    devices = [f'{_device(worker)}/device:CPU:0' for worker in self._workers()]
    replicas = self.extended.replicas
    return self.surviving(
      lambda: input_joint.JointReaders(devices, replicas, dataset_fn)
    )

  def addresses(self) -> dict[spec_lib.Task, str]:
    """Where ps and workers answer."""
    return {**self._address_book.addresses, **self._workers()}

  def input_context(self) -> tf.distribute.InputContext:
    """That of an input of which each batch is divided among the replicas."""
    return tf.distribute.InputContext(num_input_pipelines=1)

  def wait_for_chief(self, name: str, timeout_secs: float | None) -> None:
    """Nobody is waited for: this is the chief."""

  def _connect_to_cluster(self, coordinator_name: str) -> None:
    cluster = spec_lib.Cluster(self._cluster_resolver.cluster_spec().as_dict())
    if self._is_by_host:
      self.hosts = topology.Topology.of(cluster, self._host_of).hosts
    super()._connect_to_cluster(coordinator_name)

  def _gradients_age(self, updates: policies.Policy | None) -> bool:
    return False


class Iterators:
  """An iterator on each worker, over that worker's own dataset.

  Args:
    strategy: whose workers.
    dataset_fn: makes the dataset of one.

  Attributes:
    spec: the type of `iterator`.
    iterator: one for each worker, in their order.
  """

  def __init__(
    self, strategy: InGraphStrategy, dataset_fn: per_worker.DatasetFn
  ) -> None:
    workers = list(strategy._workers())
    made = per_worker.trace(
      dataset_fn, len(workers), strategy.num_replicas_in_sync
    )
    specs = [fn.structured_outputs.element_spec for fn in made]
    self.spec = [tf.data.IteratorSpec(spec) for spec in specs]
    emptying = iterators.emptying(specs[0])
    self.iterator = []
    for worker, fn in zip(workers, made, strict=True):
      with tf.device(f'{_device(worker)}/device:CPU:0'):
        self.iterator.append(iterators.over(fn(), emptying))


def _device(worker: spec_lib.Task) -> str:
  return f'/job:worker/replica:0/task:{worker.index}'
