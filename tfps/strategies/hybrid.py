"""Strategy with tables on the ps and dense variables on every worker.

```
strategy = tfps.replication.HybridStrategy(cluster)  # in every worker
with strategy.scope():
  model = build_model()
  model.compile('adam', 'mse')
model.fit(make_dataset(strategy.input_context()))
print(strategy.hybrid_report())
```
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import TypeVar

import tensorflow as tf

from tfps.cluster import spec as spec_lib
from tfps.recovery import config as recovery_config
from tfps.strategies import between_graph
from tfps.strategies import hybrid_extended
from tfps.strategies import hybrid_setup
from tfps.strategies import regrouping
from tfps.updates import policies
from tfps.updates.allreduce import elastic_group as elastic_group_lib
from tfps.updates.allreduce import gradient_mean as gradient_mean_lib
from tfps.updates.allreduce import group_monitor
from tfps.updates.allreduce import membership_table as membership_table_lib
from tfps.updates.allreduce import rendezvous
from tfps.updates.allreduce import step_sync
from tfps.variables import hybrid_placement
from tfps.variables import placement as placement_lib
from tfps.wire import config

_Result = TypeVar('_Result')

_ROWS_PER_STEP = 4096


class HybridStrategy(between_graph.BetweenGraphStrategy):
  """Synchronous training with tables on the ps and dense variables on workers.

  Each worker runs the program, as with `BetweenGraphStrategy`. Each has its own
  copy of dense trainable variables and of the optimizer's slots for them:
  TensorFlow's collectives (ring all-reduce) sum the workers' gradients, and
  each worker applies the mean. Variables that are read by rows are on the ps,
  as with `updates.Sync()`, and so are variables that are not trainable. All
  workers do the same number of steps, except on batches of a
  `tfps.input.SplitQueue`: workers without a batch get the others' updates.

  With a `Recovery`, training goes on when a ps was lost. With `replicas=1`
  nothing is set back; at most one step is applied twice in addition to those
  that other losses repeat, as `recovery_report` tells. Without replicas, what
  is on the ps is set back to the last snapshot, and `train` does these steps
  again. What each worker has for itself is in no snapshot: it stays as it is,
  so that it has been trained for more steps than the tables, by as many as a
  snapshot is old. If all workers are lost, training continues from a
  checkpoint only.

  Sources: Kim et al. 2019, "Parallax: sparsity-aware data parallel training of
  deep neural networks"; Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce
  algorithms for clusters of workstations".

  Args:
    cluster: the cluster, with this process' task, the chief or a worker.
    variable_partitioner: divides variables on the ps into shards; see
      `tfps.partitioners`. By default variables are not sharded.
    placement: assigns variables to ps; see `tfps.placement`. By default
      `ByteBalanced()`.
    wire: how values are transferred between ps and workers; see `tfps.Wire`.
    recovery: how training survives the loss of a ps; see `tfps.Recovery`. The
      same in all workers, of which only the chief uses its directory. By
      default it does not.
    choose: returns 'ps' or 'workers', the place of a trainable variable, for
      its `hybrid_placement.Description`; by default `hybrid_placement.Rule`.
    rows_per_step: number of different rows of a table that a worker reads in a
      step; the default rule uses it.
    timeout_secs: how long a worker waits for the others in a step, before it
      ends with an error that names them.
    connect_timeout_secs: how long to wait for the ps to answer, for the chief
      to create a variable, and for all workers to start.

  Raises:
    errors.UnreachableError: a ps did not answer in time; names it.
    errors.ClusterMismatchError: a ps was started with another cluster.
    errors.ServerStartError: this task's port is in use.
    errors.DeadlineError: the chief or a worker has not started in time.
    errors.CheckpointError: the directory of `recovery` cannot be used.
    ValueError: the task is not a chief or worker, it is in an enclosure (see
      `tfps.security`) with other workers, or the ps have variables of workers
      that no longer run, live ones or those of a snapshot.
  """

  keras_optimizers = 'tfps.keras.hybrid_optimizers'

  _extended_class = hybrid_extended.Extended
  _max_devices = 1
  _session_class = step_sync.GroupSyncSession

  sync_session: step_sync.GroupSyncSession

  def __init__(
    self,
    cluster: spec_lib.Cluster,
    variable_partitioner: Callable[..., Sequence[int]] | None = None,
    *,
    placement: placement_lib.Placement | None = None,
    wire: config.Wire | None = None,
    recovery: recovery_config.Recovery | None = None,
    choose: hybrid_placement.Choose | None = None,
    rows_per_step: int = _ROWS_PER_STEP,
    timeout_secs: float = 120.0,
    connect_timeout_secs: float = 120.0,
  ) -> None:
    hybrid_setup.check_reachable(cluster)
    waits = group_monitor.Waits.of(connect_timeout_secs, timeout_secs)
    super().__init__(
      cluster,
      variable_partitioner,
      placement=placement,
      wire=wire,
      updates=policies.Sync(timeout_secs=waits.silence_secs),
      recovery=recovery,
      connect_timeout_secs=connect_timeout_secs,
    )
    guard = self.guard
    if guard and guard.begins_with_snapshot and self.num_workers == 1:
      # No worker has what is in no snapshot.
      raise ValueError(membership_table_lib.GONE)
    rule = hybrid_placement.Rule(
      self.num_workers, self._cluster.num_ps, rows_per_step=rows_per_step
    )
    self._chooser = hybrid_placement.Chooser(rule, choose)
    self.extended.choose = self._chooser
    session = self.sync_session
    session.num_steps = self.extended.make_count()
    session.task = self.task
    if guard is not None:
      session.end_change = self.extended.local_state.end_change
    if self.num_workers > 1:
      session.elastic_group = self._join(waits)

  def is_held(self, variable: Any) -> bool:
    """Returns whether each worker has its own copy of a variable.

    Args:
      variable: a `tf.Variable` of this strategy.
    """
    return bool(self.extended.local_state.has(variable))

  def begin_means(
    self, gradients: Sequence[tf.Tensor]
  ) -> gradient_mean_lib.GradientMeans:
    """Starts to average dense gradients over all workers.

    Args:
      gradients: of this worker; each of the same shape in all workers.

    Returns:
      An object whose `result` waits for the other workers' gradients.
    """
    return gradient_mean_lib.GradientMeans(
      self.sync_session.elastic_group, gradients
    )

  def begin_change(self, means: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
    """Prepares for the loss of a ps while a step changes local variables.

    Args:
      means: what the step changes them by.

    Returns:
      Tensors after which it may change them.
    """
    if self.guard is None:
      return means
    with tf.control_dependencies(means):
      return [self.extended.local_state.begin_change()]

  def hybrid_report(self) -> hybrid_placement.HybridReport:
    """Returns the place of each trainable variable, and the costs of both."""
    return hybrid_placement.HybridReport(tuple(self._chooser.made))

  def surviving(self, function: Callable[[], _Result]) -> _Result:
    """Calls a function, again in a new group of workers if some are lost.

    With a `Recovery`, it also does so once a lost ps has been restored.

    Args:
      function: the function.

    Returns:
      The function's result.

    Raises:
      errors.DeadlineError: workers have not joined, or ps have not restarted in
        time; names them.
      errors.UnreachableError: ps are lost, without a `Recovery`; names them.
    """
    return super().surviving(
      lambda: regrouping.call(function, self.task, self._joins_again_after)
    )

  def _joins_again_after(self, error: tf.errors.OpError) -> bool:
    """Returns whether the loss of a worker explains an error.

    The loss of a ps is repaired, then the function is called again.
    """
    group = self.sync_session.elastic_group
    if self.guard is None:
      hybrid_setup.check_ps(self._cluster, self.task, error)
    else:
      if self.extended.local_state.undo_change() and group is not None:
        group.note_undone()
      if self.guard.is_due(error):
        return False
    return group is not None and group.should_retry(error)

  def _join(self, waits: group_monitor.Waits) -> elastic_group_lib.ElasticGroup:
    """Makes the elastic group of the tasks that train."""
    session, number = self.sync_session, self.num_workers
    made = elastic_group_lib.ElasticGroup(
      [group_monitor.Peer(*peer) for peer in self.addresses().items()],
      self._peers.index,
      hybrid_setup.membership_table(self.extended, self.guard, number),
      self.extended.local_state,
      rendezvous.UpdateHooks(
        session.start, session.members.take_in, session.members.leave_out
      ),
      waits=waits,
      tell=self.events.tell,
    )
    if self.guard is not None:
      self.guard.on_loss = made.interrupt
      self.guard.on_restored(lambda: made.note_restored(is_chief=self.is_chief))
    return made

  def _start_session(self) -> None:
    if self.num_workers == 1:  # else each elastic group starts it
      super()._start_session()
    elif self.guard is not None:
      session = self.sync_session
      self.guard.use_sync(session)
      version = session.state.read_points()[0].version
      if not version or self.guard.begins_with_snapshot:
        session.start()  # a snapshot can be taken before there is a group
