"""Synchronization within the steps of a function that is being traced."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import copy
from typing import Any

import tensorflow as tf

from tfps._compat import writes
from tfps.updates import steppers
from tfps.updates.sync import aggregation as aggregation_lib
from tfps.updates.sync import bounded_staleness as bounded_staleness_lib
from tfps.updates.sync import protocol_ops as protocol_ops_lib
from tfps.updates.sync import ps_state as ps_state_lib


class BarrierStep(steppers.Stepper):
  """Steps of which those of all workers make one update.

  Each time that a step has an optimizer apply gradients is a point, at which
  the gradients of all workers are added up.

  Args:
    sync_ops: operations on the state of all points.
    state: synchronization state on the ps.
    name: name of the job; unique on the ps.
    worker: number of the worker that executes the function.
    points: ticket of each point at the beginning.
    count: called where the first point of a step makes its update.

  Attributes:
    comes_and_goes: whether workers take part only while they have batches, so
      that a step must have a single point.
  """

  comes_and_goes = False

  def __init__(
    self,
    sync_ops: protocol_ops_lib.SyncOps,
    state: ps_state_lib.SyncState,
    name: str,
    worker: tf.Tensor,
    points: list[protocol_ops_lib.StepTicket],
    count: Callable[[], object],
  ) -> None:
    self._sync_ops = sync_ops
    self._state = state
    self._name = name
    self._worker = worker
    self._points = points
    self._count = count
    self._aggregator: dict[int, aggregation_lib.GradientAggregator] = {}
    self._graph = tf.compat.v1.get_default_graph()
    self._num_met = 0
    # Whether the step is applied, all steps so far are, and how many up to the
    # first that was not.
    self._counts = self._all_count = tf.constant(value=True)
    self._num_counted = tf.constant(0, tf.int64)
    # Version of the first point at which the step began, and whether this
    # worker's gradients are part of the update made there.
    self._step = points[0].version
    self._takes_part = tf.constant(value=True)

  def state(self) -> tuple[tf.Tensor, ...]:
    tickets = tf.stack([tf.stack(ticket) for ticket in self._points])
    return tickets, self._all_count, self._num_counted

  def after(self, num_steps: Any, *state: tf.Tensor) -> Any:
    del num_steps
    tickets, all_count, num_counted = state
    later = copy.copy(self)
    later._points = [
      protocol_ops_lib.StepTicket(*tf.unstack(ticket))
      for ticket in tf.unstack(tickets, num=len(self._points))
    ]
    later._all_count, later._num_counted = all_count, num_counted
    return later

  @contextlib.contextmanager
  def step(self, number: Any) -> Iterator[None]:
    del number
    self._num_met = 0
    self._counts = tf.constant(value=True)
    yield
    if not self._num_met:
      raise ValueError(
        'Sync: no optimizer applies gradients in the step, so that there is '
        'nothing to average and no update to count. Have one of Keras apply '
        'them, or, with ps, use updates=Async().'
      )
    self._all_count &= self._counts
    self._num_counted += tf.cast(self._all_count, tf.int64)

  def num_counted(self, num_steps: tf.Tensor | int) -> tf.Tensor:
    """Returns the number of steps applied, up to the first that was not."""
    del num_steps
    return self._num_counted

  def meet(
    self,
    pieces: Sequence[aggregation_lib.Piece],
    update: Callable[[list[Any]], object],
  ) -> None:
    """Adds up all workers' gradients and lets one worker make the update.

    Args:
      pieces: gradients of this worker, one per variable or shard.
      update: makes the update of their means; traced in a branch.

    Raises:
      ValueError: a step has too many points.
    """
    number = self._num_met
    self._num_met += 1
    if number >= ps_state_lib.MAX_POINTS:
      raise ValueError(
        'Sync: a step applies gradients more than '
        f'{ps_state_lib.MAX_POINTS} times. Use fewer optimizers in it.'
      )
    if number and self.comes_and_goes:
      raise ValueError(
        'Sync: a step on batches of a SplitQueue applies gradients more than '
        'once. A worker that gets a split while others are between the two '
        'could not take part. Use one optimizer, or give each worker an '
        'endless share: tfps.input.shard, and repeat().'
      )
    if number not in self._aggregator:
      with self._graph.as_default(), tf.control_dependencies(None):
        self._aggregator[number] = aggregation_lib.GradientAggregator(
          self._state, self._name, number, pieces
        )
    aggregator, ticket = self._aggregator[number], self._ticket(number)
    is_added = aggregator.add(pieces, self._sync_ops.for_sums(ticket))
    arrival = self._sync_ops.arrive(
      number, self._worker, ticket, self._step, is_added
    )

    def lead() -> tuple[tf.Tensor, tf.Tensor]:
      first = writes.num_operations()
      update(aggregator.take_means(ticket.version))
      if number == 0:
        updated = writes.num_operations()
        self._count()
        # A replica that goes on for a lost ps has not the count alone.
        writes.put_after_others(first, updated)
      done = after_writes(first, ticket.version)
      with tf.control_dependencies([done]):
        following = self._sync_ops.release(number, done, arrival.enough)
      return tf.identity(following.version), tf.identity(following.quorum)

    version, quorum = tf.cond(arrival.leads, lead, lambda: tuple(arrival.after))
    self._points[number] = protocol_ops_lib.StepTicket(version, quorum)
    self._counts &= self._sync_ops.counts(arrival, ticket, version)
    if number == 0:
      self._takes_part = tf.equal(version, self._step + 1)

  def _ticket(self, number: int) -> protocol_ops_lib.StepTicket:
    """Returns the ticket of a point, or one that is late if so is the step."""
    ticket = self._points[number]
    if number == 0:
      self._step = ticket.version
      return ticket
    never = tf.constant(protocol_ops_lib.NEVER, tf.int64)
    version = tf.where(self._takes_part, ticket.version, never)
    return ticket._replace(version=version)


class StaleSyncStep(steppers.Stepper):
  """Steps of workers that keep within a number of steps of each other.

  Args:
    staleness_bound: bound of a worker's lead.
    worker: number of the worker that executes the function.

  Attributes:
    gate: tensors after which the next step may read variables.
    written: tensors after which all updates of the steps so far are made.
  """

  def __init__(
    self,
    staleness_bound: bounded_staleness_lib.StalenessBound,
    worker: tf.Tensor,
  ) -> None:
    self.gate: list[tf.Tensor] = []
    self.written: list[tf.Tensor] = []
    self._staleness_bound = staleness_bound
    self._worker = worker

  def state(self) -> tuple[tf.Tensor, ...]:
    return (token_after(self.gate),)

  def after(self, num_steps: Any, *state: tf.Tensor) -> 'StaleSyncStep':
    del num_steps
    later = StaleSyncStep(self._staleness_bound, self._worker)
    later.gate = later.written = list(state)
    return later

  @contextlib.contextmanager
  def step(self, number: Any) -> Iterator[None]:
    """Returns a context in which a step is traced that ends by waiting."""
    del number
    first = writes.num_operations()
    yield
    done = after_writes(first, self._worker)
    self.written = [done]
    self.gate = [self._staleness_bound.advance(done)]

  def count_together(self, count: Callable[[], object]) -> None:
    with tf.control_dependencies(self.written):
      count()


def execution(
  steps: Callable[..., Any],
  sync_ops: protocol_ops_lib.SyncOps,
  staleness_bound: bounded_staleness_lib.StalenessBound | None,
) -> Callable[..., Any]:
  """Returns a function of steps with the beginning and end of an execution.

  Args:
    steps: a function; see `SyncSession.around`.
    sync_ops: operations that begin and end an execution.
    staleness_bound: bound that admits the worker, if any.
  """

  def execute(*args: Any) -> Any:
    given, worker = args[:-1], args[-1]
    tickets = sync_ops.begin(worker)
    versions = tf.stack([ticket.version for ticket in tickets])
    before = [versions]
    if staleness_bound is not None:
      before.append(staleness_bound.begin(worker))
    with tf.control_dependencies(before):
      result = steps(*given, worker, versions, tf.identity(tickets[0].quorum))
    with tf.control_dependencies(tf.nest.flatten(result)):
      sync_ops.end(worker)
    return result

  return execute


def token_after(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
  """Returns a scalar that is there after tensors, for the next iteration."""
  with tf.control_dependencies(tensors):
    return tf.constant(0, tf.int64)


def after_writes(first: int, tensor: tf.Tensor) -> tf.Tensor:
  """Returns a tensor once a function's writes are done.

  It is placed here because ps do not see each other.

  Args:
    first: number of operations of the function to skip.
    tensor: any tensor.
  """
  written = [
    operation
    for operations in writes.by_place(first).values()
    for operation in operations
  ]
  with tf.control_dependencies(written):
    return tf.identity(tensor)
