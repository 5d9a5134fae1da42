"""Strategy of workers that add up gradients among themselves, without ps.

```
strategy = tfps.AllReduceStrategy()  # in every worker, as TF_CONFIG says
with strategy.scope():
  model = build_model()
  model.compile('adam', 'mse')
model.fit(dataset)  # batches are divided among the workers
```
"""

from collections.abc import Callable
from typing import Any
from typing import TypeVar

import tensorflow as tf

from tfps.cluster import resolver as resolver_lib
from tfps.cluster import spec as spec_lib
from tfps.recovery import events as events_lib
from tfps.server import connection
from tfps.server import environment
from tfps.server import registration
from tfps.server import server as server_lib
from tfps.server import task_monitor
from tfps.strategies import all_reduce_setup as setup
from tfps.strategies import dashboard
from tfps.strategies import gradient_sums
from tfps.strategies import local_input
from tfps.strategies import peers as peers_lib
from tfps.strategies import regrouping
from tfps.training import trainer
from tfps.updates import reports
from tfps.updates.allreduce import group_monitor
from tfps.updates.allreduce import membership as membership_lib
from tfps.updates.allreduce import others as others_lib
from tfps.updates.allreduce import reduction as reduction_lib
from tfps.updates.allreduce import session as session_lib

_Result = TypeVar('_Result')


class AllReduceStrategy(
  local_input.LocalInput, trainer.Trainer, tf.distribute.Strategy
):
  """Synchronous training by workers that each have all variables.

  It takes the place of `tf.distribute.MultiWorkerMirroredStrategy`, with which
  Keras 3 cannot train. Each worker runs the program. In a step, each computes
  the gradients of its part of a batch; TensorFlow's collectives add them up
  around a ring, and each worker applies the sums. So the workers' variables
  stay equal, bit for bit. The chief, which is chief:0 or, in a cluster without
  one, worker:0, has the initial values, saves and restores.

  `num_replicas_in_sync` is the number of workers of the cluster. As with
  TensorFlow's strategies, gradients are summed, and a step of your own divides
  its loss by this number; Keras does so. Where fewer workers train, sums are
  scaled, so that they remain what they are for all workers.

  `fit` divides each batch of its input among the workers that train, as
  `experimental_distribute_dataset` does: all workers read the same input, so
  seed what shuffles it. A dataset whose auto-shard policy is OFF, and one from
  a function of an `InputContext`, is a worker's own. `evaluate` and `predict`
  do all of their input on each worker. Metrics of `fit` are those of all
  workers, if they are sums or means.

  A worker that is lost is left out after at most `silence_secs`, and the others
  go on from their last common step; the steps that they repeat are counted in
  `recovery_report`. A worker that is started again passes over what the others
  have done, copies their variables and goes on with them. While the chief is
  away the others wait for it. Source of the idea: elastic Horovod.

  Args:
    cluster: the cluster, with this process' task, the chief or a worker; by
      default `tfps.resolve_cluster()`. A cluster of one task is trained in this
      process alone.
    communication_options: `bytes_per_pack` is the number of bytes that are sent
      as one tensor, and `implementation` the algorithm: by default NCCL if this
      process has a GPU, else a ring of gRPC.
    timeout_secs: how long a step waits for others, which the error names.
    silence_secs: how long a worker may give no sign of life.
    connect_timeout_secs: how long to wait for all workers to start.

  Attributes:
    task: task of this process.
    is_chief: whether it is the chief.
    gradients: adds up gradients.
    shares: this worker's shares of batches.

  Raises:
    errors.ServerStartError: this task's port is in use.
    ValueError: the task or the cluster does not fit, or NCCL finds no GPU.
  """

  keras_functions = 'tfps.keras.all_reduce_functions'
  keras_optimizers = 'tfps.keras.all_reduce_optimizers'
  guard = None

  def __init__(
    self,
    cluster: spec_lib.Cluster | None = None,
    communication_options: Any = None,
    *,
    timeout_secs: float = 120.0,
    silence_secs: float | None = None,
    connect_timeout_secs: float = 120.0,
  ) -> None:
    environment.set_default()
    self._cluster = cluster or resolver_lib.resolve_cluster()
    self.task = setup.trainer(self._cluster)
    self.is_chief = self.task == registration.chief_of(self._cluster)
    self._peers = peers_lib.Peers(self._cluster, self.task)
    self.events = events_lib.Events(None)
    own, number = self._peers.index, len(self._peers.tasks)
    workers = [group_monitor.Peer(*peer) for peer in self.addresses().items()]
    config = server_lib.default_config(number)
    if number > 1:  # a process' first tensor would keep it from serving
      server_lib.wait_for_port(self.task, self._cluster.address(self.task))
      others_lib.enable(workers, own, [own], config)
    extended, state = setup.extended_of(self, self._cluster, self._peers)
    self.membership: membership_lib.Membership | None = None
    super().__init__(extended)
    self.transfers = setup.no_transfers()
    self.reduction = reduction_lib.Reduction(
      own, number, **setup.algorithm(communication_options)
    )
    with self.scope(), tf.name_scope('tfps/'):
      self._global_step = self._make_global_step()
      self._num_steps = tf.Variable(
        0, dtype=tf.int64, trainable=False, name='num_steps'
      )
    if number > 1:
      self.membership = membership_lib.Membership(
        workers,
        own,
        state,
        self.reduction,
        self._num_steps,
        config=config,
        waits=group_monitor.Waits.of(
          connect_timeout_secs, timeout_secs, silence_secs
        ),
        tell=self.events.tell,
      )
      connection.stop_before_next(self.close)
    self.sync_session = session_lib.AllReduceSession(
      self.membership,
      self.reduction,
      self._num_steps,
      worker=own,
      tell=lambda steps: self.events.tell_repeated(str(self.task), steps),
    )
    self.gradients = gradient_sums.GradientSums(
      self.sync_session, self.reduction, extended, state
    )
    self.shares = setup.Shares(self.reduction, number)
    dashboard.begin_alone(self, self.task, is_chief=self.is_chief)

  @property
  def num_steps(self) -> tf.Variable:
    """The number of steps of all workers together: a scalar int64.

    A loop of your own ends by it, so that a worker that was lost goes on where
    the others are: `while strategy.num_steps < 1000: ...`.
    """
    return self._num_steps

  def input_context(self) -> tf.distribute.InputContext:
    """Returns this worker's context, by which to shard data."""
    return self._peers.input_context(self.num_workers)

  def all_reduce(self, reduce_op: Any, value: Any) -> Any:
    """Returns the sums or means of values over all workers.

    Args:
      reduce_op: `tf.distribute.ReduceOp.SUM` or `MEAN`.
      value: structure of tensors and `tf.IndexedSlices`.
    """
    self.sync_session.join_before_sum()
    factor = None
    is_mean = reduce_op == tf.distribute.ReduceOp.MEAN
    if is_mean:
      factor = self.reduction.scale / self.num_workers
    values = [
      each if isinstance(each, tf.IndexedSlices) else tf.convert_to_tensor(each)
      for each in tf.nest.flatten(value)
    ]
    sums = self.reduction.sum_all(values, factor)
    if is_mean:
      sums = [self._divided_exactly(total) for total in sums]
    return tf.nest.pack_sequence_as(value, sums)

  def _divided_exactly(self, total: Any) -> Any:
    """Returns a mean, given a sum of which only floats are divided already.

    As with TensorFlow's strategies, that of integers is a float64.
    """
    if total.dtype.is_floating:
      return total
    return total / tf.cast(self.reduction.size, total.dtype)

  def monitor(self) -> task_monitor.TaskMonitor:
    """Returns a monitor of all tasks, to name those that a call waits for."""
    return self._peers.monitor()

  def wait_for_chief(self, name: str, timeout_secs: float | None) -> None:
    """Waits for all workers, and copies the chief's variables.

    If others train already, it copies theirs.

    Args:
      name: unused; all workers make the same calls.
      timeout_secs: unused; see `connect_timeout_secs`.
    """
    del name, timeout_secs
    self.sync_session.set_position(int(self.global_step.numpy()))
    self.sync_session.join()

  def surviving(self, function: Callable[[], _Result]) -> _Result:
    """Calls a function, again in a new group of workers if some are lost.

    Use it for steps in loops of your own, as `train` and Keras' `fit` do:
    `loss = strategy.surviving(lambda: step(batch))`.

    Args:
      function: the function.

    Returns:
      The function's result.

    Raises:
      errors.DeadlineError: workers have not come in time; names them.
    """
    result = regrouping.call(function, self.task, self._join_again_after)
    self.sync_session.change_if_due()
    return result

  def _join_again_after(self, error: tf.errors.OpError) -> bool:
    """Joins the other workers again if a loss explains an error."""
    if self.membership is None or not self.membership.should_retry(error):
      return False
    self.sync_session.join_again()
    return True

  def recovery_report(self) -> events_lib.RecoveryReport:
    """Returns this worker's record of lost workers and repeated steps."""
    return self.events.report

  def updates_report(self) -> reports.UpdatesReport:
    """Returns the number of steps, each of which made one update."""
    number = int(self._num_steps.numpy())
    return reports.UpdatesReport(updates=number, staleness=(number,))

  def check_usable(self) -> None:
    """Does nothing: the steps of this strategy need no other server."""

  def close(self) -> None:
    """Leaves the other workers for good; twice is harmless.

    `fit` and `train` leave them at their end; a program that ends with a loop
    of its own calls this. The chief waits until the others are done.
    """
    if self.membership is not None:
      self.membership.close()
