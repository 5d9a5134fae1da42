"""Strategy of one client whose graph spans all workers, hence synchronous.

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
import time
from typing import Any
from typing import TypeVar
import weakref

from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib
from tfps.cluster import topology
from tfps.recovery import client_recovery
from tfps.recovery import config as recovery_config
from tfps.recovery import copies as copies_lib
from tfps.server import task_monitor
from tfps.strategies import joint_input
from tfps.strategies import parameter_server as parameter_server_lib
from tfps.training import trainer
from tfps.variables import extended
from tfps.variables import placement as placement_lib

_Result = TypeVar('_Result')


class _Extended(extended.Extended):
  """Traces steps into functions that this process calls."""

  def _resource_creator_scope(self) -> Any:
    return []  # without a coordinator, lookup tables are on the chief


class InGraphStrategy(
  joint_input.JointInput,
  parameter_server_lib.ParameterServerStrategy,
  trainer.Trainer,
):
  """In-graph replication, as in TensorFlow 1's guide to distribution.

  The program runs in the chief. Each training step is one graph, with a replica
  of the model's computation on each worker, which has a batch of its own, and
  one update. Workers pull the parameters and push their gradients; the ps apply
  the optimizer once, to the mean. There are no queues and no locks, and no
  worker is ahead of another.

  Ps and workers run `tfps.serve`. The graph needs all of them: when a task is
  lost, the running call raises an error that names it, and a program that is
  restarted continues from its checkpoint. With a `Recovery`, training goes on
  once a lost ps is back, or another one has taken its place.

  In a step of `train`, each worker takes the next batch of its own dataset. If
  a worker's loss is the mean over a batch of n examples, this is the step of a
  single process on the batches of all workers. When a queue has fewer batches
  left than there are replicas, steps have half as many replicas, then a
  quarter, and so on; the first replicas take batches of other workers.

  A worker with several GPUs, or with no GPU and several logical CPUs, has a
  replica on each; see `ParameterServerStrategy` about batches and losses.

  Source: "In-graph replication" in TensorFlow 1's "Distributed TensorFlow";
  `tf.compat.v1.train.replica_device_setter` also places variables on ps.

  Args:
    cluster: a `tfps.Cluster`, or a `tf.distribute.cluster_resolver`.
      `Cluster.local()` starts a ps and a worker within this process.
    variable_partitioner: divides variables into shards; see
      `tfps.partitioners`. By default variables are not sharded.
    placement: assigns variables to ps; see `tfps.placement`. By default
      `ByteBalanced()`.
    recovery: how training survives the loss of a ps; see `tfps.Recovery`. By
      default it does not.
    timeout_secs: how long a ps or worker may not answer, for example because it
      is frozen, before calls that wait for it raise an error.
    by_host: whether the workers of a host sum their gradients on one of them,
      which pushes the sum to ps on other hosts, so that the host's link carries
      one gradient instead of one for each worker. It costs time if links are
      faster than the processes of a host exchange values.
    host_of: the hosts of tasks by name, such as 'ps:0'. For other tasks, the
      host of the task's address in the cluster.
    connect_timeout_secs: how long to wait for all ps and workers to answer.

  Raises:
    errors.UnreachableError: tasks did not answer in time, or other tasks
      answered at their addresses; names them.
    errors.ServerStartError: the chief's port is in use.
    errors.ClusterMismatchError: a task was started with another cluster.
    errors.CheckpointError: the directory of `recovery` cannot be used.
    ValueError: the cluster has no ps or no worker, workers have different
      numbers of devices, `timeout_secs` is not above 0, or `host_of` names a
      task that is not in the cluster.
  """

  # See `ParameterServerStrategy`.
  keras_functions = 'tfps.keras.in_graph_functions'

  _make_extended = _Extended
  _steps_span_workers = True
  takes_coordinator = False

  guard: client_recovery.ClientRecovery | None

  def __init__(
    self,
    cluster: Any,
    variable_partitioner: Callable[..., Sequence[int]] | None = None,
    *,
    placement: placement_lib.Placement | None = None,
    recovery: recovery_config.Recovery | None = None,
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
      recovery=recovery,
      connect_timeout_secs=connect_timeout_secs,
    )
    self._timeout_secs = timeout_secs
    # Ps that recovery waits for may be silent.
    needed = self._workers() if self.guard else self.addresses()
    self._monitor = task_monitor.TaskMonitor(needed, dict)
    self._iterators = weakref.WeakSet()
    self._probed_at = -timeouts.current().probe_every_secs
    # TensorFlow would require a coordinator to call the steps.
    self.extended._allow_run_without_coordinator = True

  def monitor(self) -> task_monitor.TaskMonitor:
    """Returns a monitor of all tasks, to name those that a call waits for."""
    return task_monitor.TaskMonitor(self.addresses(), dict)

  def surviving(self, function: Callable[[], _Result]) -> _Result:
    """Calls a function while monitoring all tasks that it needs.

    Use it for calls of your own: `strategy.surviving(lambda: step())`. `train`
    and Keras' `fit` use it themselves. With a `Recovery`, it calls the function
    again when a ps that was lost has been restored.

    Args:
      function: the function.

    Returns:
      The function's result.

    Raises:
      errors.UnreachableError: tasks have ended or restarted; names them.
      errors.DeadlineError: tasks are frozen, or a ps has not restarted in time;
        names them.
    """
    now = time.monotonic()
    if now > self._probed_at + timeouts.current().probe_every_secs:
      # Newly traced functions are sent to all tasks, which holds the GIL while
      # one of them is frozen.
      self._monitor.wait_while_hung('InGraphStrategy', self._timeout_secs)
      self._probed_at = now
    guard, again = self.guard, self._beginning_again(function)
    return self._monitor.follow(
      'InGraphStrategy',
      function if guard is None else lambda: guard.surviving(again),
      self._timeout_secs,
    )

  def addresses(self) -> dict[spec_lib.Task, str]:
    """Returns the addresses of ps and workers."""
    return self._all_addresses()

  def _worker_devices(self) -> list[str]:
    return [
      f'/job:worker/replica:0/task:{worker.index}/device:CPU:0'
      for worker in self._workers()
    ]

  def wait_for_chief(self, name: str, timeout_secs: float | None) -> None:
    """Returns at once, because this process is the chief.

    Args:
      name: of what to wait for.
      timeout_secs: how long to wait.
    """

  def _connect_to_cluster(self, coordinator_name: str) -> None:
    cluster = spec_lib.Cluster(self._cluster_resolver.cluster_spec().as_dict())
    if self._is_by_host:
      self.hosts = topology.Topology.of(cluster, self._host_of).hosts
    super()._connect_to_cluster(coordinator_name)

  def _make_guard(
    self, copies: copies_lib.Copies
  ) -> client_recovery.ClientRecovery:
    return client_recovery.ClientRecovery(copies, greet=self._greet)
