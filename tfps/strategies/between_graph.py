"""Every worker runs its own program; they share variables on the ps by name.

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
import itertools
from typing import Any
from typing import TypeVar

import tensorflow as tf

from tfps.cluster import spec as spec_lib
from tfps.input import iterators
from tfps.input import per_worker
from tfps.input import readers as input_feeds
from tfps.recovery import client_recovery
from tfps.recovery import config as recovery_config
from tfps.recovery import events
from tfps.recovery import preemption
from tfps.server import client
from tfps.server import connection
from tfps.server import control_messages
from tfps.server import joining
from tfps.server import local_pool
from tfps.server import ps_addresses
from tfps.server import registration as registration_lib
from tfps.training import barriers
from tfps.training import checkpoints as checkpoints_lib
from tfps.training import hooks as hooks_lib
from tfps.training import progress as progress_lib
from tfps.training import replica_loop
from tfps.training import step_log as step_log_lib
from tfps.training import step_program
from tfps.training import train_spec
from tfps.updates import policies
from tfps.updates import reports
from tfps.updates import staleness as staleness_lib
from tfps.updates.sync import failure_detector
from tfps.updates.sync import ps_state
from tfps.updates.sync import session as session_lib
from tfps.variables import placement as placement_lib
from tfps.variables import placement_ledger
from tfps.variables import shared_extended
from tfps.variables import shared_variables
from tfps.variables import step_replicas
from tfps.wire import config
from tfps.wire import traffic
from tfps.wire import transfers

_Result = TypeVar('_Result')


class BetweenGraphStrategy(tf.distribute.Strategy):
  """Asynchronous training with nobody in the middle.

  Variables made in `scope` live on the ps under the names that the program
  gives them. The chief, which is chief:0 or, in a cluster without one,
  worker:0, gives them their values; the other workers wait for that and attach.
  A worker may join late, leave, die and come back: it goes on with the values
  that are there. Updates are applied on the ps as they come, atomic for one
  variable, without a lock over several.

  Metrics and seeds, as all variables with `ON_READ` synchronization, stay in
  the worker. So does data: a dataset is not sharded unless the program does it.

  A worker with several GPUs, or without any but with several logical CPUs, has
  a replica of each step on each of them, and pushes the sum of their gradients
  once; see `ParameterServerStrategy` about losses. `CUDA_VISIBLE_DEVICES` says
  which GPUs a process has. `fit` divides batches among the devices; those of
  `train` are for one device each, and a step takes one for each.

  Args:
    cluster: with this process' task, which is the chief or a worker.
      `Cluster.local()` gets one ps within this process.
    variable_partitioner: how variables are cut into shards; see
      `tfps.partitioners`. By default they are not.
    placement: which ps gets which variable; see `tfps.placement`. By default
      `ByteBalanced()`.
    wire: how values travel between ps and workers; see `tfps.Wire`.
    updates: when gradients become updates; see `tfps.updates`. By default after
      each step.
    recovery: has training survive the loss of a ps; see `tfps.Recovery`. The
      same in all workers, of whom the chief alone uses the directory.
    connect_timeout_secs: how long to wait for the ps to answer, and for the
      chief to make a variable.

  Raises:
    errors.UnreachableError: names the ps that did not answer in time.
    errors.ClusterMismatchError: a ps holds another idea of the cluster.
    errors.ServerStartError: this task's port is taken.
    errors.DeadlineError: the chief has not begun in time.
    errors.CheckpointError: the directory of `recovery` cannot be used.
    ValueError: the task is no chief or worker.
  """

  # What Keras' trainer asks for input; see `_compat.keras_trainer`.
  keras_functions = 'tfps.keras.client_functions'

  # What Keras' optimizers have gradients applied by; see
  # `_compat.keras_optimizers`.
  keras_optimizers = 'tfps.keras.optimizers'

  _extended_class = shared_extended.Extended

  # Whether steps have a replica on each of the worker's devices.
  _has_several_devices = True

  _meetings_class: type[session_lib.SyncSession] = session_lib.SyncSession

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
    self._local: local_pool.LocalCluster | None = None
    self._cluster = self._with_servers(cluster)
    self.task = client.trainer(self._cluster)
    self.is_chief = self.task == registration_lib.chief_of(self._cluster)
    address_book = ps_addresses.PsAddressBook(self._cluster)
    self._registration, self._fence = client.connect(
      self._cluster,
      self.task,
      address_book,
      connect_timeout_secs,
      listens=recovery is not None and self.is_chief,
    )
    policy = placement_lib.within(
      placement or placement_lib.ByteBalanced(), self._cluster
    )
    extended = self._extended_class(
      self, self._cluster.resolver(), variable_partitioner
    )
    extended.is_chief = self.is_chief
    extended.replicas = self._find_replicas()
    extended.ledger = placement_ledger.PlacementLedger(
      policy,
      self._cluster.num_ps,
      replicas=recovery.replicas if recovery else 0,
    )
    extended.shared = shared_variables.SharedVariables(
      is_chief=self.is_chief,
      timeout_secs=connect_timeout_secs,
      chief=str(registration_lib.chief_of(self._cluster)),
    )
    self.guard: client_recovery.ClientRecovery | None = None
    self.step_log: step_log_lib.StepLog | None = None
    if recovery is not None:
      self._survive(recovery, address_book, extended)
      if not isinstance(updates, policies.Waiting):  # which count by themselves
        self._mark(extended)
    super().__init__(extended)
    num_ps = self._cluster.num_ps
    self.transfers = transfers.Transfers(
      wire or config.Wire(), num_ps, policy=updates, is_local=True
    )
    with self.scope(), tf.name_scope('tfps/'):
      self._global_step = tf.Variable(
        0,
        dtype=tf.int64,
        trainable=False,
        name='global_step',
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
      )
    self._barriers = barriers.Barriers(
      extended.shared,
      self._trainers(),
      self.task,
      extended.notice,
      joined=lambda: joining.find_joined(client.at_home(address_book)),
      surviving=self.guard.reading if self.guard else lambda write: write(),
    )
    self.staleness: staleness_lib.Staleness | None = None
    if not isinstance(updates, policies.Sync):  # whose gradients have none
      self.staleness = staleness_lib.Staleness(
        extended.make_own,
        self._cluster.num_ps,
        divides_rate=getattr(updates, 'divide_rate', False),
      )
    self.sync_session: session_lib.SyncSession | None = None
    if isinstance(updates, policies.Waiting):
      self.sync_session = self._meet(updates)
      self.wait_for_chief('meetings', connect_timeout_secs)

  @property
  def global_step(self) -> tf.Variable:
    """A scalar int64 on the ps, common to all workers.

    `train` counts with it. A program of its own adds to it what it has done:
    `strategy.global_step.assign_add(1)`.
    """
    return self._global_step

  def readers(self, dataset_fn: per_worker.DatasetFn) -> input_feeds.OwnReaders:
    """Where this worker's batches come from if there is a queue."""
    return input_feeds.OwnReaders(
      self.task,
      self.addresses(),
      dataset_fn,
      self.replica_input_context(),
      lambda: self.num_interruptions,
    )

  def input_context(self) -> tf.distribute.InputContext:
    """Which of the workers this is, to shard data by.

    Batches are for the whole worker: `fit` and
    `experimental_distribute_dataset` divide them among its devices.
    """
    return self._input_context(1)

  def replica_input_context(self) -> tf.distribute.InputContext:
    """Likewise, where batches are for one device of the worker."""
    return self._input_context(self.num_replicas_in_sync)

  def _input_context(self, num_replicas: int) -> tf.distribute.InputContext:
    trainers = self._trainers()
    return tf.distribute.InputContext(
      num_input_pipelines=len(trainers),
      input_pipeline_id=trainers.index(self.task),
      num_replicas_in_sync=num_replicas,
    )

  def batches(
    self, dataset_fn: per_worker.DatasetFn
  ) -> iterators.RestartableIterator:
    """This worker's batches, for `train`."""
    dataset = dataset_fn(self.replica_input_context())
    return iterators.RestartableIterator(
      dataset, lambda: self.num_interruptions
    )

  @property
  def num_interruptions(self) -> int:
    """How often the loss of a ps has cut short what was executed."""
    return self.guard.num_interruptions if self.guard else 0

  def addresses(self) -> dict[spec_lib.Task, str]:
    """Where the tasks that run the program answer."""
    return {task: self._cluster.address(task) for task in self._trainers()}

  def barrier(self, name: str, timeout_secs: float | None) -> None:
    """Waits until the chief and every worker have come to the same barrier.

    Those are all whom the chief's cluster lists, and those that have joined it
    since and are alive. One that joins passes, the first time, a barrier that
    the others have come to and at which nobody waits.

    Args:
      name: tells barriers apart; a name can be used again and again.
      timeout_secs: how long to wait; None is for ever.

    Raises:
      errors.DeadlineError: names the tasks that have not come.
    """
    self._barriers.wait(name, timeout_secs)

  def wait_for_chief(self, name: str, timeout_secs: float | None) -> None:
    """Waits until the chief has come here, too; the chief does not wait.

    So workers do not begin before the chief has, for example, loaded weights.

    Args:
      name: of this place in the program; coming here again is another place.
      timeout_secs: how long to wait; None is for ever.

    Raises:
      errors.DeadlineError: the chief has not come.
    """
    self._barriers.wait_for_chief(name, timeout_secs)

  def train(
    self,
    step_fn: step_program.StepFn,
    dataset_fn: per_worker.DatasetFn,
    *,
    steps: int | None = None,
    steps_per_execution: int = 1,
    max_unroll: int = step_program.MAX_UNROLL,
    checkpoint: Any = None,
    checkpoint_dir: Any = None,
    checkpoint_every_secs: float | None = None,
    checkpoint_every_steps: int | None = None,
    max_to_keep: int = 3,
    hooks: Sequence[hooks_lib.Hook] = (),
    log_every_secs: float = 10.0,
  ) -> progress_lib.TrainResult:
    """Trains until the global step, to which all workers add, is `steps`.

    Workers do not wait for each other. Each looks at the global step before an
    execution, so that it may end up to `steps_per_execution` steps above
    `steps` for every further worker. An execution that the loss of a ps has cut
    short counts what it had done; one step at most, that at which it was, is
    applied twice. The chief saves, and restores the latest
    checkpoint unless the ps hold live values: those are never rolled back.

    Args:
      step_fn: one step on a batch: computes gradients, applies them and
        returns scalar metrics by name, or None.
      dataset_fn: this worker's batches, given its `InputContext`. With several
        devices, a batch is for one of them. If it takes what it reads from a
        `tfps.input.SplitQueue`, it is called for the batches of one split,
        which must not be repeated.
      steps: the global step to reach. Training ends before when all that a
        queue has to share out is done; None: then alone.
      steps_per_execution: how many steps to do in one call.
      max_unroll: how many of them to lay out in one graph.
      checkpoint: a `tf.train.Checkpoint` or another trackable, to save.
      checkpoint_dir: where to.
      checkpoint_every_secs: how often; by default only at the end.
      checkpoint_every_steps: how often; by default only at the end.
      max_to_keep: how many checkpoints to keep.
      hooks: called with the progress; see `tfps.hooks`.
      log_every_secs: the period of the log's line.

    Returns:
      Where training stands, this worker's mean metrics, and the steps that all
      workers together did meanwhile.

    Raises:
      errors.CheckpointError: the latest checkpoint is damaged, or one cannot
        be written, for example because the disk is full.
      errors.DeadlineError: the chief has not begun to train in time.
      FloatingPointError: a metric is not a number.
      ValueError: the dataset ran out; repeat it.
    """
    self.transfers.check_execution(steps_per_execution)
    plan = train_spec.TrainSpec(
      train_spec.ENDLESS if steps is None else steps,
      steps_per_execution=steps_per_execution,
      max_unroll=max_unroll,
    )
    saving = checkpoints_lib.Saving(
      checkpoint,
      checkpoint_dir,
      every_secs=checkpoint_every_secs,
      every_steps=checkpoint_every_steps,
      max_to_keep=max_to_keep,
    )
    course = progress_lib.TrainProgress(
      plan, hooks, log_every_secs=log_every_secs
    )
    loop = replica_loop.ReplicaLoop(self, course, saving)
    return loop.run(step_fn, dataset_fn)

  def placement_report(self) -> placement_ledger.PlacementReport:
    """The bytes and the variables on each ps, and the replicas' bytes."""
    report: placement_ledger.PlacementReport = self.extended.ledger.report()
    return report

  def wire_report(self) -> traffic.WireReport:
    """The bytes that this worker has pulled from each ps, and pushed to it."""
    return self.transfers.report()

  def updates_report(self) -> reports.UpdatesReport:
    """What has become of gradients so far.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    return reports.report(self.sync_session, self.staleness)

  def recovery_report(self) -> events.RecoveryReport:
    """What this worker knows of lost tasks, and what it has done twice.

    Without a `Recovery`, it knows nothing.
    """
    return self.guard.events.report if self.guard else events.RecoveryReport()

  def surviving(self, function: Callable[[], _Result]) -> _Result:
    """The function's result, whatever ps is lost meanwhile.

    With a `Recovery`, the function is called again once a lost ps is back. A
    loop of one's own does a step, or several, in it:
    `loss = strategy.surviving(lambda: step(batch))`. `train` and Keras' `fit`
    do so by themselves.

    Raises:
      errors.DeadlineError: names who has not come back in time.
    """
    return self.guard.surviving(function) if self.guard else function()

  def close(self) -> None:
    """Tells the ps that this worker is done; twice is harmless.

    So does the end of a program that has not failed. The ps that `tfps.serve`
    runs exit once the chief is done and no other worker lives.
    """
    self._stop_protecting()
    self._registration.stop()
    if self._local is not None:
      self._local.stop()

  def _stop_protecting(self) -> None:
    if self.guard is not None:
      self._requests.stop()
      self._preemption.stop()
      self.guard.stop()

  def _survive(
    self,
    recovery: recovery_config.Recovery,
    address_book: ps_addresses.PsAddressBook,
    extended: Any,
  ) -> None:
    guard = client_recovery.ClientRecovery(
      recovery,
      address_book=address_book,
      is_chief=self.is_chief,
      shared=extended.shared,
      device=f'/job:{self.task.job}/task:{self.task.index}/device:CPU:0',
      greet=self._registration.start,
      fence=self._fence,
    )
    extended.notice = guard.add
    extended.shared.surviving = guard.reading
    self._requests = control_messages.Listener(
      self.task,
      guard.do_without,
      lambda *worker: None,
    )
    self.guard = guard

    def leave() -> None:
      guard.save_for_good()
      if not self.is_chief:  # whose end would be that of training
        self._registration.stop()

    self._preemption = preemption.Preemption(leave)
    connection.stop_before_next(self._stop_protecting)

  def _mark(self, extended: Any) -> None:
    assert self.guard is not None
    self.step_log = step_log_lib.StepLog(
      step_log_lib.rings(extended.make_own, self._cluster.num_ps),
      slots=itertools.repeat(self._trainers().index(self.task)),
      own=str(self.task),
      tell=self.guard.events.tell_repeated,
    )

  def _meet(self, policy: policies.Waiting) -> session_lib.SyncSession:
    trainers = self._trainers()
    own = trainers.index(self.task)
    sync_session = self._meetings_class(
      policy,
      ps_state.SyncState(
        self.extended.make_own,
        num_ps=self._cluster.num_ps,
        num_workers=len(trainers),
      ),
      name='',
      worker=lambda: own,
      tell=self.guard.events.tell_repeated if self.guard else None,
    )
    others = {
      task: self._cluster.address(task)
      for task in trainers
      if task != self.task
    }
    failure_detector.FailureDetector(
      sync_session,
      lambda: others,
      trainers.index,
      timeout_secs=policy.timeout_secs,
    )
    if self.is_chief:
      self._start_meetings(sync_session)
    return sync_session

  def _start_meetings(self, sync_session: session_lib.SyncSession) -> None:
    sync_session.start()
    if self.guard is not None:
      quiet = sync_session.paused if sync_session.makes_one_update else None
      self.guard.meet_by(sync_session.start, quiet)

  def _find_replicas(self) -> step_replicas.Replicas:
    names = (device.name for device in tf.config.list_logical_devices())
    found = step_replicas.of_task(names, self.task)
    if self._has_several_devices:
      return found
    return step_replicas.Replicas(found.devices[:1])

  def _with_servers(self, cluster: spec_lib.Cluster) -> spec_lib.Cluster:
    if cluster.jobs:
      return cluster
    self._local = local_pool.LocalCluster(num_workers=1, num_ps=1)
    return self._local.cluster

  def _trainers(self) -> list[spec_lib.Task]:
    """The tasks that run the program; those in this process only serve."""
    return [
      task
      for task in (
        *self._cluster.tasks('chief'),
        *self._cluster.tasks('worker'),
      )
      if task == self.task
      or not local_pool.is_here(self._cluster.address(task))
    ]
