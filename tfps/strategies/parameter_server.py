"""Strategy of a chief whose coordinator schedules steps on workers.

```
strategy = tfps.ParameterServerStrategy(tfps.resolve_cluster())
with strategy.scope():
  table = tf.Variable(tf.zeros([1_000_000, 32]))
print(strategy.placement_report())
```
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Sequence
import contextlib
import itertools
import random
from typing import Any

from absl import logging
import tensorflow as tf

from tfps import errors
from tfps._compat import server_def
from tfps._compat import strategy as compat
from tfps._compat import writes
from tfps.cluster import spec as spec_lib
from tfps.recovery import config as recovery_config
from tfps.recovery import coordinator_recovery as coordinator_recovery_lib
from tfps.recovery import copies as copies_lib
from tfps.recovery import snapshots
from tfps.recovery import worker_admission
from tfps.server import chief_address
from tfps.server import client
from tfps.server import control_messages
from tfps.server import fencing
from tfps.server import local_pool
from tfps.server import ps_addresses
from tfps.strategies import runtime
from tfps.strategies import session_setup
from tfps.updates import policies
from tfps.variables import extended as extended_lib
from tfps.variables import placement as placement_lib
from tfps.variables import step_replicas
from tfps.wire import config


class ParameterServerStrategy(
  runtime.Runtime, tf.distribute.ParameterServerStrategy
):
  """Drop-in replacement for TensorFlow's class of the same name.

  This process becomes the chief. Its coordinator schedules functions on the
  workers, and variables made in `scope` are on the ps.

  A worker with several GPUs, or with no GPU and several logical CPUs, has a
  replica of each step on each device, as under TensorFlow's class. Variables
  stay on the CPUs of the ps. `num_replicas_in_sync` is the number of replicas
  in a worker, whose gradients are summed there and pushed once: a custom step
  divides its loss by it, as Keras and `tf.nn.compute_average_loss` do. Batches
  of a `dataset_fn` are for one replica; other input of `fit` is divided.

  Args:
    cluster: a `tfps.Cluster`, or a `tf.distribute.cluster_resolver` as for
      TensorFlow's class. `Cluster.local()` starts a ps and a worker within this
      process.
    variable_partitioner: divides variables into shards; see
      `tfps.partitioners`. By default variables are not sharded.
    placement: assigns variables to ps; see `tfps.placement`. By default
      `ByteBalanced()`.
    wire: how values are transferred between ps and workers; see `tfps.Wire`.
    updates: when gradients become updates; see `tfps.updates`. By default after
      each step.
    recovery: how training survives the loss of a ps or the chief; see
      `tfps.Recovery`. By default it does not.
    connect_timeout_secs: how long to wait for all ps and workers to answer.

  Raises:
    errors.UnreachableError: tasks did not answer in time, or other tasks
      answered at their addresses; names them.
    errors.ServerStartError: the chief's port is in use.
    errors.ClusterMismatchError: a task was started with another cluster.
    errors.CheckpointError: the directory of `recovery` cannot be used.
    ValueError: the cluster has no ps or no worker, workers have different
      numbers of devices, or `updates` is no update policy.
  """

  _cluster_resolver: Any  # set by TensorFlow's constructor

  # The module with the functions of Keras' trainer; see
  # `_compat.keras_trainer`.
  keras_functions = 'tfps.keras.train_functions'

  # The module with the methods of Keras' optimizers; see
  # `_compat.keras_optimizers`.
  keras_optimizers = 'tfps.keras.optimizers'

  task = spec_lib.CHIEF
  is_chief = True

  _make_extended: type[extended_lib.Extended] = extended_lib.Extended

  def __init__(
    self,
    cluster: Any,
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
    self._connect_timeout_secs = connect_timeout_secs
    self._recovers = recovery is not None
    self._job = snapshots.job_name(recovery.directory) if recovery else ''
    super().__init__(chief_address.resolver_for(cluster), variable_partitioner)
    self._note_connected()
    extended = self._make_extended(
      self, self._cluster_resolver, variable_partitioner
    )
    compat.replace_extended(self, extended)
    extended.replicas = step_replicas.find(
      (device.name for device in tf.config.list_logical_devices()),
      span_workers=self._steps_span_workers,
    )
    self._begin_variables(
      settings,
      spec_lib.Cluster(self._cluster_resolver.cluster_spec().as_dict()),
    )
    self._begin_updates(settings, self._session_workers())

  def _make_guard(self, copies: copies_lib.Copies) -> runtime.Guard:
    return coordinator_recovery_lib.CoordinatorRecovery(
      copies, greet=self._greet, workers=self._workers()
    )

  def _listener(self) -> control_messages.Listener:
    guard = self.guard
    if not isinstance(guard, coordinator_recovery_lib.CoordinatorRecovery):
      return super()._listener()
    joining = worker_admission.WorkerAdmission(
      guard, self._registration, self._note_worker
    )
    return control_messages.Listener(
      spec_lib.CHIEF, guard.do_without, joining.admit
    )

  def _session_workers(self) -> session_setup.Workers:
    return session_setup.Workers(
      number=len(self._workers()),
      current=writes.current_worker,
      number_of=lambda worker: worker.index,
      others=self._workers,
      slots=itertools.count(),
      job=self._job or f'{random.SystemRandom().getrandbits(64):x}',
    )

  def close(self) -> None:
    """Notifies ps and workers that training is done; twice is harmless.

    `Coordinator.close` and the end of a program without an error call it. Tasks
    that run `tfps.serve` then exit.
    """
    self._stop_background()
    if self._servers():  # those of this process go on
      self._be_closed()
    self._registration.stop()

  def _greet(self, without: Collection[spec_lib.Task]) -> None:
    """Registers at servers that have restarted, as far as they answer."""
    with contextlib.suppress(errors.UnreachableError):
      self._registration.start(without)

  def _workers(self) -> dict[spec_lib.Task, str]:
    spec = self._cluster_resolver.cluster_spec()
    cluster = spec_lib.Cluster(spec.as_dict())
    return {task: cluster.address(task) for task in cluster.tasks('worker')}

  def _all_addresses(self) -> dict[spec_lib.Task, str]:
    return {**self._address_book.addresses, **self._workers()}

  def _note_worker(self, worker: spec_lib.Task, address: str) -> None:
    """Adds a worker that has joined, for later coordinators."""
    workers = {**self._workers(), worker: address}
    jobs = self._cluster_resolver.cluster_spec().as_dict()
    jobs['worker'] = {task.index: at for task, at in workers.items()}
    self._cluster_resolver = chief_address.resolver_of(
      jobs, self._cluster_resolver
    )
    self._num_workers = len(workers)

  def _connect_to_cluster(self, coordinator_name: str) -> None:
    # TensorFlow's constructor calls this after checking the resolver. Its own
    # method would wait for a missing task without a timeout.
    cluster = spec_lib.Cluster(
      self._cluster_resolver.cluster_spec().as_dict(), spec_lib.CHIEF
    )
    workers = cluster.tasks('worker')
    self._address_book = ps_addresses.PsAddressBook(cluster)
    self._address_book.wait_until_served(self._connect_timeout_secs, workers)
    self._cluster_resolver = chief_address.with_chief(
      self._cluster_resolver, self._address_book
    )
    spec = self._cluster_resolver.cluster_spec()
    address = spec.task_address('chief', 0)
    self._registration = client.register(
      cluster,
      spec_lib.CHIEF,
      address,
      self._address_book,
      self._connect_timeout_secs,
      is_chief=True,
      listens=self._recovers,
      workers=workers,
    )
    client.prepare()
    if compat.is_own_address('chief', address):
      # The cluster may have changed since the server got its definition.
      server_def.become(spec)
    # Ps may be hosted by, and copy to, each other.
    if not compat.let_ps_see_each_other() and self._recovers:
      logging.warning(
        'tf.distribute.ParameterServerStrategy has connected in this process '
        'first, and hides ps from each other: one that is served at another '
        'address after its loss may not be found. Make a tfps strategy first.'
      )
    self._fence = fencing.Fence(spec_lib.CHIEF, self._servers, self._job)
    connect = super()._connect_to_cluster
    client.join(lambda: connect(coordinator_name), self._fence)

  def _servers(self) -> dict[spec_lib.Task, str]:
    """Returns the ps and workers that are other processes."""
    tasks = {**self._address_book.addresses, **self._workers()}
    return {
      task: address
      for task, address in tasks.items()
      if not local_pool.is_here(address)
    }
