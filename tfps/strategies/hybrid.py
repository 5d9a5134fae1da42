"""Tables on the ps, and all else with every worker, who add up gradients.

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
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import TypeVar

from absl import logging
import tensorflow as tf

from tfps import errors
from tfps._compat import keras_variables
from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib
from tfps.recovery import events as events_lib
from tfps.server import health
from tfps.strategies import between_graph
from tfps.updates import policies
from tfps.updates.allreduce import elastic_group as elastic_group_lib
from tfps.updates.allreduce import gradient_mean as gradient_mean_lib
from tfps.updates.allreduce import group_monitor
from tfps.updates.allreduce import local_state as local_state_lib
from tfps.updates.allreduce import membership_table as membership_table_lib
from tfps.updates.allreduce import rendezvous
from tfps.updates.allreduce import step_sync
from tfps.updates.sync import session as session_lib
from tfps.variables import hybrid_placement
from tfps.variables import placement as placement_lib
from tfps.variables import shared_extended
from tfps.variables import variable_types
from tfps.wire import config

_Result = TypeVar('_Result')

_ROWS_PER_STEP = 4096


class Extended(shared_extended.Extended):
  """Keeps some variables in the worker, alike in all of them.

  Attributes:
    choose: chooses which; to be set before the first.
    holdings: those that are kept here.
  """

  choose: Callable[[hybrid_placement.Description], str]

  def __init__(self, *args: Any, **kwargs: Any) -> None:
    super().__init__(*args, **kwargs)
    self.holdings = local_state_lib.LocalState()

  def _create_variable(self, next_creator: Any, **kwargs: Any) -> Any:
    is_beside = self.holdings.has(kwargs.get('colocate_with'))
    if not (is_beside or self._is_to_be_held(kwargs)):
      return super()._create_variable(next_creator, **kwargs)
    kwargs['per_worker_variable'] = True
    variable = super()._create_variable(next_creator, **kwargs)
    self.holdings.variables.append(variable)
    return variable

  def make_count(self) -> tf.Variable:
    """A counter that is kept here."""
    with tf.init_scope(), tf.device(None):
      count = tf.Variable(
        0, dtype=tf.int64, trainable=False, name='tfps/hybrid/steps'
      )
    self.holdings.variables.append(count)
    return count

  def _is_to_be_held(self, kwargs: Mapping[str, Any]) -> bool:
    if kwargs.get('colocate_with') is not None or self._is_local(kwargs):
      return False
    is_counter = kwargs.get('name') == keras_variables.COUNTER
    if is_counter and keras_variables.is_making():
      return True
    if kwargs.get('trainable') is False or not _is_floating(kwargs):
      return False
    return self.choose(_description(kwargs)) == hybrid_placement.WORKERS


class HybridStrategy(between_graph.BetweenGraphStrategy):
  """Synchronous training; tables are on the ps, all else is with every worker.

  Each worker runs the program, as with `BetweenGraphStrategy`. What learns and
  is dense, and the optimizer's slots for it, each worker has for itself:
  gradients are added up among the workers, by TensorFlow's collectives over a
  ring, and each applies their mean. What is read in some rows is on the ps, as
  with `updates.Sync()`, and so are variables that do not learn. All workers do
  equally many steps, except on batches of a `tfps.input.SplitQueue`: who has
  none gets what comes of the others' steps.

  Sources: Kim et al. 2019, "Parallax: sparsity-aware data parallel training of
  deep neural networks"; Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce
  algorithms for clusters of workstations".

  Args:
    cluster: with this process' task, which is the chief or a worker.
    variable_partitioner: how variables on the ps are cut into shards.
    placement: which ps gets which variable.
    wire: how values travel between ps and workers.
    choose: says of each variable that learns whether it is to be on 'ps' or
      with the 'workers', given its `Description`; see `choices.Rule`, which
      does so by default.
    rows_per_step: for the rule: how many different rows of a table a step of a
      worker reads.
    timeout_secs: how long a worker waits for the others in a step, before it
      ends with an error that names them.
    connect_timeout_secs: as with `BetweenGraphStrategy`, and for the others to
      begin.

  Raises:
    errors.DeadlineError: a worker has not begun in time.
    ValueError: the ps have variables of workers that are gone.
  """

  keras_optimizers = 'tfps.keras.hybrid_optimizers'

  _extended_class = Extended

  _has_several_devices = False

  _meetings_class = step_sync.GroupSyncSession

  def __init__(
    self,
    cluster: spec_lib.Cluster,
    variable_partitioner: Callable[..., Sequence[int]] | None = None,
    *,
    placement: placement_lib.Placement | None = None,
    wire: config.Wire | None = None,
    choose: hybrid_placement.Choose | None = None,
    rows_per_step: int = _ROWS_PER_STEP,
    timeout_secs: float = 120.0,
    connect_timeout_secs: float = 120.0,
  ) -> None:
    silence_secs = min(timeouts.current().silence_secs, timeout_secs)
    super().__init__(
      cluster,
      variable_partitioner,
      placement=placement,
      wire=wire,
      updates=policies.Sync(timeout_secs=silence_secs),
      connect_timeout_secs=connect_timeout_secs,
    )
    self._events = events_lib.Events(None)
    rule = hybrid_placement.Rule(
      self.num_workers, self._cluster.num_ps, rows_per_step=rows_per_step
    )
    self._chooser = hybrid_placement.Chooser(rule, choose)
    self.extended.choose = self._chooser
    assert isinstance(self.sync_session, step_sync.GroupSyncSession)
    self.sync_session.num_steps = self.extended.make_count()
    if self.num_workers > 1:
      waits = elastic_group_lib.Waits(
        connect_timeout_secs, timeout_secs, silence_secs
      )
      self.sync_session.elastic_group = self._join(waits, self.sync_session)

  @property
  def num_workers(self) -> int:
    """How many workers there are, with the chief."""
    return len(self._trainers())

  def is_held(self, variable: Any) -> bool:
    """Whether each worker has a TensorFlow variable for itself."""
    held: bool = self.extended.holdings.has(variable)
    return held

  def begin_means(
    self, gradients: Sequence[tf.Tensor]
  ) -> gradient_mean_lib.GradientMeans:
    """Begins to add up gradients with those of the other workers."""
    return gradient_mean_lib.GradientMeans(self._elastic_group, gradients)

  def hybrid_report(self) -> hybrid_placement.HybridReport:
    """Where each variable that learns is, and what both places cost."""
    return hybrid_placement.HybridReport(tuple(self._chooser.made))

  def recovery_report(self) -> events_lib.RecoveryReport:
    """What this worker knows of lost workers, and what was done twice."""
    return self._events.report

  def surviving(self, function: Callable[[], _Result]) -> _Result:
    """The function's result, whatever workers are lost meanwhile.

    Raises:
      errors.DeadlineError: names the workers that have not come in time.
      errors.UnreachableError: names ps that are lost.
    """
    while True:
      try:
        return super().surviving(function)
      except tf.errors.OutOfRangeError:
        raise
      except tf.errors.OpError as error:
        self._name_lost_ps(error)
        if self._elastic_group is None or not self._elastic_group.is_to_go_on(
          error
        ):
          raise
        logging.warning(
          '%s makes another crew: %s', self.task, errors.first_line(error)
        )

  @property
  def _elastic_group(self) -> elastic_group_lib.ElasticGroup | None:
    assert isinstance(self.sync_session, step_sync.GroupSyncSession)
    return self.sync_session.elastic_group

  def _join(
    self, waits: elastic_group_lib.Waits, sync_session: session_lib.SyncSession
  ) -> elastic_group_lib.ElasticGroup:
    """Readies this process for a crew, of those that train."""
    trainers = self._trainers()
    return elastic_group_lib.ElasticGroup(
      [group_monitor.Peer(t, self._cluster.address(t)) for t in trainers],
      trainers.index(self.task),
      membership_table_lib.MembershipTable(
        self.extended.make_own, len(trainers)
      ),
      self.extended.holdings,
      rendezvous.SyncSession(
        sync_session.start, sync_session.take_in, sync_session.leave_out
      ),
      waits=waits,
      tell=self._events.tell,
    )

  def _start_meetings(self, sync_session: session_lib.SyncSession) -> None:
    if self.num_workers == 1:  # else each crew does
      super()._start_meetings(sync_session)

  def _name_lost_ps(self, error: tf.errors.OpError) -> None:
    """Raises an error that names ps, if they are to blame."""
    addresses = {
      task: self._cluster.address(task) for task in self._cluster.tasks('ps')
    }
    lost = [
      status
      for status in health.probe_all(addresses)
      if status.state is not health.State.ALIVE
    ]
    if lost:
      raise errors.UnreachableError(
        f'{self.task} cannot go on: {"; ".join(map(str, lost))}. Start all '
        'tasks again; training goes on from its checkpoint.'
      ) from error


def _description(kwargs: Mapping[str, Any]) -> hybrid_placement.Description:
  known = variable_types.with_type(kwargs)
  shape = tf.TensorShape(known.get('shape'))
  name = str(kwargs.get('name') or 'Variable')
  return hybrid_placement.Description(
    name=name,
    shape=tuple(shape) if shape.is_fully_defined() else None,
    num_bytes=variable_types.num_bytes(known),
    is_table=name == keras_variables.TABLE and shape.rank == 2,
  )


def _is_floating(kwargs: Mapping[str, Any]) -> bool:
  dtype = variable_types.with_type(kwargs).get('dtype')
  return dtype is not None and bool(tf.as_dtype(dtype).is_floating)
