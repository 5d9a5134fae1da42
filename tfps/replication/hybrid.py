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
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import TypeVar

import numpy as np
import tensorflow as tf

from tfps import _ports
from tfps import _sharing
from tfps import between_graph
from tfps import cluster as cluster_lib
from tfps import errors
from tfps import placement as placement_lib
from tfps import probe
from tfps import variable_types
from tfps._compat import keras_variables
from tfps.replication import choices
from tfps.replication import rings
from tfps.updates import policies
from tfps.wire import config

_Result = TypeVar('_Result')

_PS = 0
_ROWS_PER_STEP = 4096

# What Keras names the variable of an `Embedding`, and the counter of an
# optimizer.
_TABLE = 'embeddings'
_COUNTER = 'iteration'


class Extended(_sharing.Extended):
  """Keeps some variables in the worker, alike in all of them.

  Attributes:
    choose: chooses which; to be set before the first.
    of_first: what the chief gives, of arrays that all workers give.
    held: those that are kept here, in the order in which they were made.
  """

  choose: Callable[[choices.Description], str]
  of_first: Callable[[np.ndarray], np.ndarray]

  def __init__(self, *args: Any, **kwargs: Any) -> None:
    super().__init__(*args, **kwargs)
    self.held: list[tf.Variable] = []

  def is_held(self, variable: Any) -> bool:
    """Whether it is one of those."""
    return any(variable is each for each in self.held)

  def share(self) -> None:
    """Gives those that are kept here the values that they have in the chief."""
    for variable in self.held:
      variable.assign(self.of_first(variable.numpy()))

  def _create_variable(self, next_creator: Any, **kwargs: Any) -> Any:
    owner = kwargs.get('colocate_with')
    if not (self.is_held(owner) or self._is_to_be_held(kwargs)):
      return super()._create_variable(next_creator, **kwargs)
    kwargs['per_worker_variable'] = True
    variable = super()._create_variable(next_creator, **kwargs)
    if owner is None:  # else it begins with a constant
      variable.assign(self.of_first(variable.numpy()))
    self.held.append(variable)
    return variable

  def _is_to_be_held(self, kwargs: Mapping[str, Any]) -> bool:
    if kwargs.get('colocate_with') is not None or self._is_local(kwargs):
      return False
    if keras_variables.is_making() and kwargs.get('name') == _COUNTER:
      return True
    if kwargs.get('trainable') is False or not _is_floating(kwargs):
      return False
    return self.choose(_description(kwargs)) == choices.WORKERS


class HybridStrategy(between_graph.BetweenGraphStrategy):
  """Synchronous training; tables are on the ps, all else is with every worker.

  Each worker runs the program, as with `BetweenGraphStrategy`. What learns and
  is dense, and the optimizer's slots for it, each worker has for itself:
  gradients are added up among the workers, by TensorFlow's collectives over a
  ring, and each applies their mean. What is read in some rows is on the ps, as
  with `updates.Sync()`, and so are variables that do not learn. All workers do
  equally many steps.

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

  def __init__(
    self,
    cluster: cluster_lib.Cluster,
    variable_partitioner: Callable[..., Sequence[int]] | None = None,
    *,
    placement: placement_lib.Placement | None = None,
    wire: config.Wire | None = None,
    choose: choices.Choose | None = None,
    rows_per_step: int = _ROWS_PER_STEP,
    timeout_secs: float = 120.0,
    connect_timeout_secs: float = 120.0,
  ) -> None:
    self._timeout_secs = timeout_secs
    self._ring: rings.Ring | None = None
    super().__init__(
      cluster,
      variable_partitioner,
      placement=placement,
      wire=wire,
      updates=policies.Sync(timeout_secs=timeout_secs),
      connect_timeout_secs=connect_timeout_secs,
    )
    self._check_fresh()
    rule = choices.Rule(
      self.num_workers, self._cluster.num_ps, rows_per_step=rows_per_step
    )
    self._chooser = choices.Chooser(rule, choose)
    self.extended.choose = self._chooser
    self.extended.of_first = self._of_first
    if self.num_workers > 1:
      self._ring = self._join(connect_timeout_secs)

  @property
  def num_workers(self) -> int:
    """How many workers there are, with the chief."""
    return len(self._trainers())

  def is_held(self, variable: Any) -> bool:
    """Whether each worker has a TensorFlow variable for itself."""
    held: bool = self.extended.is_held(variable)
    return held

  def means(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Of the gradients of all workers, each its mean over them."""
    if self._ring is None:
      return list(gradients)
    found: list[Any] = [None] * len(gradients)
    by_type: dict[tf.DType, list[int]] = {}
    for i, gradient in enumerate(gradients):
      by_type.setdefault(gradient.dtype, []).append(i)
    for indices in by_type.values():
      flat = [tf.reshape(gradients[i], [-1]) for i in indices]
      mean = self._ring.sum(tf.concat(flat, axis=0)) / self.num_workers
      sizes = [tf.size(each) for each in flat]
      for i, part in zip(indices, tf.split(mean, sizes), strict=True):
        found[i] = tf.reshape(part, tf.shape(gradients[i]))
        found[i].set_shape(gradients[i].shape)
    return found

  def hybrid_report(self) -> choices.HybridReport:
    """Where each variable that learns is, and what both places cost."""
    return choices.HybridReport(tuple(self._chooser.made))

  def wait_for_chief(self, name: str, timeout_secs: float | None) -> None:
    """As with `BetweenGraphStrategy`; then all have what the chief has."""
    super().wait_for_chief(name, timeout_secs)
    if self._ring is not None:
      self.extended.share()

  def surviving(self, function: Callable[[], _Result]) -> _Result:
    """The function's result.

    Raises:
      errors.DeadlineError: names the workers that have not come in time.
      errors.UnreachableError: names those that are lost.
    """
    try:
      return super().surviving(function)
    except tf.errors.OpError as error:
      if isinstance(error, tf.errors.OutOfRangeError):
        raise
      self._name_the_lost(error)
      raise

  def _of_first(self, array: np.ndarray) -> np.ndarray:
    ring = self._ring
    if ring is None:
      return array
    return self.surviving(lambda: ring.of_first(array))

  def _join(self, timeout_secs: float) -> rings.Ring:
    """Tells the others where this process is to be found, and finds them."""
    trainers = self._trainers()
    own = trainers.index(self.task)
    ports = self.extended.make_own(
      _PS, 'tfps/hybrid/ports', tf.zeros([len(trainers)], tf.int64)
    )
    ports.scatter_update(
      tf.IndexedSlices(tf.constant([_ports.pick()], tf.int64), [own])
    )
    self.barrier('tfps/hybrid/ports', timeout_secs)
    hosts = [
      self._cluster.address(task).rpartition(':')[0] for task in trainers
    ]
    return rings.Ring(
      [
        f'{host}:{port}'
        for host, port in zip(hosts, ports.numpy().tolist(), strict=True)
      ],
      own,
      timeout_secs=self._timeout_secs,
    )

  def _check_fresh(self) -> None:
    if self.is_chief and getattr(self._global_step, 'attached', False):
      raise ValueError(
        'HybridStrategy: the ps have variables of workers that are gone, and '
        'with these went what each worker had of its own. Start the ps anew, '
        'too; training goes on from its checkpoint.'
      )

  def _name_the_lost(self, error: tf.errors.OpError) -> None:
    """Raises an error that names other workers, if they are to blame."""
    others = {
      task: address
      for task, address in self.addresses().items()
      if task != self.task
    }
    states = {
      task: probe.probe(task, address).state for task, address in others.items()
    }
    lost = [t for t, s in states.items() if s is not probe.State.ALIVE]
    start = 'Start all tasks again; training goes on from its checkpoint.'
    if lost:
      raise errors.UnreachableError(
        f'{self.task} cannot go on without {_names(lost)}. {start}'
      ) from error
    if rings.is_cause(error):
      raise errors.DeadlineError(
        f'{self.task} and {_names(others)} have not come to the same step '
        f'within {self._timeout_secs:g} seconds of each other. They are alive: '
        f'do all workers have equally many batches? {start}'
      ) from error


def _description(kwargs: Mapping[str, Any]) -> choices.Description:
  known = variable_types.with_type(kwargs)
  shape = tf.TensorShape(known.get('shape'))
  name = str(kwargs.get('name') or 'Variable')
  return choices.Description(
    name=name,
    shape=tuple(shape) if shape.is_fully_defined() else None,
    num_bytes=variable_types.num_bytes(known),
    is_table=name == _TABLE and shape.rank == 2,
  )


def _is_floating(kwargs: Mapping[str, Any]) -> bool:
  dtype = variable_types.with_type(kwargs).get('dtype')
  return dtype is not None and bool(tf.as_dtype(dtype).is_floating)


def _names(tasks: Iterable[cluster_lib.Task]) -> str:
  return ', '.join(map(str, tasks))
