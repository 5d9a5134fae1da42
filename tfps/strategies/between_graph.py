"""Strategy of workers that each run the program and share variables by name.

```
cluster = tfps.resolve_cluster()
if cluster.task.job == 'ps':
  return tfps.serve(cluster)
strategy = tfps.BetweenGraphStrategy(cluster)  # in every worker
with strategy.scope():
  model = build_model()
  model.compile('adagrad', 'mse')
model.fit(make_dataset(strategy.input_context()))
```
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import TypeVar

import tensorflow as tf

from tfps.cluster import spec as spec_lib
from tfps.monitor import registry as registry_lib
from tfps.recovery import client_recovery
from tfps.recovery import config as recovery_config
from tfps.server import client
from tfps.server import joining
from tfps.server import local_pool
from tfps.server import ps_addresses
from tfps.server import registration as registration_lib
from tfps.server import task_monitor
from tfps.strategies import local_input
from tfps.strategies import peers
from tfps.strategies import runtime
from tfps.training import barriers
from tfps.training import trainer
from tfps.updates import policies
from tfps.variables import placement as placement_lib
from tfps.variables import shared_extended
from tfps.variables import step_replicas
from tfps.wire import config

_Result = TypeVar('_Result')


class BetweenGraphStrategy(
  runtime.Runtime,
  local_input.LocalInput,
  trainer.Trainer,
  tf.distribute.Strategy,
):
  """Asynchronous training by workers that need no coordinator.

  Variables made in `scope` are on the ps, under the names that the program
  gives them. The chief, which is chief:0 or, in a cluster without one,
  worker:0, initializes them; the other workers wait for that and attach. A
  worker may join late, leave, die and restart: it continues with the current
  values. Updates are applied on the ps as they arrive; they are atomic for one
  variable, without a lock over several.

  Metrics, seeds and other variables with `ON_READ` synchronization are local to
  the worker. Datasets are local, too, and not sharded unless the program does
  so.

  A worker with several GPUs, or with no GPU and several logical CPUs, has a
  replica of each step on each device, and pushes the sum of their gradients
  once; see `ParameterServerStrategy` about losses. `CUDA_VISIBLE_DEVICES`
  selects the GPUs of a process. `fit` divides batches among the devices; those
  of `train` are for one device each, and a step takes one for each.

  In `train`, workers do not wait for each other. Each reads the global step
  before an execution, so that it may exceed `steps` by up to
  `steps_per_execution` for each further worker. If the loss of a ps interrupts
  an execution, its completed steps count, and at most one step is applied
  twice. The chief saves checkpoints, and restores the latest one unless the ps
  have live values, which are never rolled back.

  Args:
    cluster: the cluster, with this process' task, the chief or a worker.
      `Cluster.local()` starts a ps within this process.
    variable_partitioner: divides variables into shards; see
      `tfps.partitioners`. By default variables are not sharded.
    placement: assigns variables to ps; see `tfps.placement`. By default
      `ByteBalanced()`.
    wire: how values are transferred between ps and workers; see `tfps.Wire`.
    updates: when gradients become updates; see `tfps.updates`. By default after
      each step.
    recovery: how training survives the loss of a ps; see `tfps.Recovery`. The
      same in all workers, of which only the chief uses its directory.
    connect_timeout_secs: how long to wait for the ps to answer, and for the
      chief to create a variable.

  Raises:
    errors.UnreachableError: ps did not answer in time; names them.
    errors.ClusterMismatchError: a ps was started with another cluster.
    errors.ServerStartError: this task's port is in use.
    errors.DeadlineError: the chief has not started in time.
    errors.CheckpointError: the directory of `recovery` cannot be used.
    ValueError: the task is not a chief or worker, or `updates` is no update
      policy.
  """

  # See `ParameterServerStrategy`.
  keras_functions = 'tfps.keras.client_functions'
  keras_optimizers = 'tfps.keras.optimizers'

  _extended_class = shared_extended.Extended
  _max_devices: int | None = None
  _runs_in_each_worker = True

  guard: client_recovery.ClientRecovery | None

  def __init__(
    self,
    cluster: spec_lib.Cluster,
    variable_partitioner: Callable[..., Sequence[int]] | None = None,
    *,
    placement: placement_lib.Placement | None = None,
    wire: config.Wire | None = None,
    updates: policies.Policy | None = None,
    recovery: recovery_config.Recovery | None = None,
    connect_timeout_secs: float = 120.0,
  ) -> None:
    settings = runtime.Settings(
      variable_partitioner=variable_partitioner,
      placement=placement,
      wire=wire,
      updates=policies.checked(updates),
      recovery=recovery,
      connect_timeout_secs=connect_timeout_secs,
    )
    self._local = None
    if not cluster.jobs:
      self._local = local_pool.LocalCluster(num_workers=1, num_ps=1)
    self._cluster = self._local.cluster if self._local else cluster
    self.task = client.trainer(self._cluster)
    self.is_chief = self.task == registration_lib.chief_of(self._cluster)
    self._address_book = ps_addresses.PsAddressBook(self._cluster)
    self._registration, self._fence = client.connect(
      self._cluster,
      self.task,
      self._address_book,
      connect_timeout_secs,
      listens=recovery is not None and self.is_chief,
    )
    self._note_connected()
    self._peers = peers.Peers(self._cluster, self.task)
    extended = self._extended_class(
      self, self._cluster.resolver(), variable_partitioner
    )
    extended.is_chief = self.is_chief
    extended.replicas = step_replicas.of_task(
      (device.name for device in tf.config.list_logical_devices()),
      self.task,
      self._max_devices,
    )
    super().__init__(extended)
    self._begin_variables(settings, self._cluster)
    if self.guard is not None:
      extended.shared.surviving = self.guard.reading
    with self.scope(), tf.name_scope('tfps/'):
      self._global_step = self._make_global_step()
    self._barriers = barriers.Barriers(
      extended.shared,
      self._peers.tasks,
      self.task,
      extended.notice,
      joined=lambda: joining.find_joined(client.at_home(self._address_book)),
      surviving=self.guard.reading if self.guard else lambda write: write(),
    )
    self._begin_updates(settings, self._peers.workers())

  def barrier(self, name: str, timeout_secs: float | None) -> None:
    """Waits until the chief and all workers have reached a barrier.

    All workers are those of the chief's cluster, and those that have joined
    since and are alive. A worker that joins passes at once a barrier that the
    others have passed already. One of the chief's cluster that is started again
    waits for the others to come once more, unless some were still missing.

    Args:
      name: the barrier's name; it can be used repeatedly.
      timeout_secs: how long to wait; None waits forever.

    Raises:
      errors.DeadlineError: tasks have not reached it; names them.
    """
    with registry_lib.of_process().doing(f'waits at the barrier {name!r}'):
      self._barriers.wait(name, timeout_secs)

  def wait_for_chief(self, name: str, timeout_secs: float | None) -> None:
    """Waits until the chief makes the same call; the chief does not wait.

    It lets workers start after the chief has, for example, loaded weights.

    Args:
      name: the name of this place in the program. A second call with it waits
        for the chief's second call.
      timeout_secs: how long to wait; None waits forever.

    Raises:
      errors.DeadlineError: the chief has not made the call.
    """
    with registry_lib.of_process().doing(f'waits for the chief at {name!r}'):
      self._barriers.wait_for_chief(name, timeout_secs)

  def monitor(self) -> task_monitor.TaskMonitor:
    """Returns a monitor of all tasks, to name those that a call waits for."""
    return self._peers.monitor(self._address_book.addresses)

  def _all_addresses(self) -> dict[spec_lib.Task, str]:
    return {**self.addresses(), **self._address_book.addresses}

  def surviving(self, function: Callable[[], _Result]) -> _Result:
    """Calls a function, again when a ps that was lost has been restored.

    Use it for steps in loops of your own, with a `Recovery`:
    `loss = strategy.surviving(lambda: step(batch))`. `train` and Keras' `fit`
    use it themselves.

    Args:
      function: the function.

    Returns:
      The function's result.

    Raises:
      errors.DeadlineError: tasks have not restarted in time; names them.
      RuntimeError: the strategy is closed, or another one was made since.
    """
    self.check_usable()
    return self.guard.surviving(function) if self.guard else function()

  def close(self) -> None:
    """Notifies the ps that this worker is done; twice is harmless.

    The end of a program without an error calls it. Ps that run `tfps.serve`
    exit when the chief is done and no other worker runs.
    """
    self._stop_background()
    self._be_closed()
    self._registration.stop()
    if self._local is not None:
      self._local.stop()

  def _leave(self) -> None:
    super()._leave()
    if not self.is_chief:  # the chief's end would end training
      self._registration.stop()
