"""What steps do besides computing where workers wait for each other."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
from typing import Any

import tensorflow as tf

from tfps._compat import writes
from tfps.updates.sync import aggregation as aggregation_lib
from tfps.updates.sync import bounded_staleness as bounded_staleness_lib
from tfps.updates.sync import protocol_ops as protocol_ops_lib
from tfps.updates.sync import ps_state as ps_state_lib


class BarrierStep:
  """A function's steps, of which those of all workers make one update.

  Each time that a step has an optimizer apply gradients is a point, at which
  these meet those of the other workers.

  Args:
    sync_ops: of all points.
    state: has their state.
    name: of the job; unique on the ps.
    worker: who executes the function.
    points: each point's turn at the beginning.
    count: called where the first point of a step makes its update.

  Attributes:
    comes_and_goes: whether workers do, within the others' steps. A step then
      has one point.
  """

  marked: frozenset[int] = frozenset()
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
    self._num_met = 0
    self._counted: list[Any] = []  # whether each step is
    # The version of the first point at which a step began, and whether the
    # others are in the same.
    self._step = points[0].version
    self._is_along = tf.constant(value=True)

  def after(self, num_steps: Any) -> 'BarrierStep':
    raise NotImplementedError('All steps are laid out in one graph.')

  @contextlib.contextmanager
  def step(self, number: int) -> Iterator[None]:
    """A step to be traced within."""
    del number
    self._num_met = 0
    self._counted.append(tf.constant(value=True))
    yield

  def num_counted(self) -> tf.Tensor:
    """How many steps were applied, up to the first that was not."""
    counted = tf.cast(tf.stack(self._counted), tf.int64)
    return tf.reduce_sum(tf.math.cumprod(counted))

  def meet(
    self,
    pieces: Sequence[aggregation_lib.Piece],
    update: Callable[[list[Any]], object],
  ) -> None:
    """Has one worker make an update of all workers' gradients.

    Args:
      pieces: the gradients of this worker.
      update: makes it of their means; traced in a branch.

    Raises:
      ValueError: a step has too many points.
    """
    number = self._num_met
    self._num_met += 1
    if number >= ps_state_lib.MAX_POINTS:
      raise ValueError(
        'Sync: a step has gradients applied more than '
        f'{ps_state_lib.MAX_POINTS} times. Let fewer optimizers do it.'
      )
    if number and self.comes_and_goes:
      raise ValueError(
        'Sync: a step on batches of a SplitQueue has gradients applied more '
        'than once. A worker that gets a split while others are between the '
        'two could not go along with them. Let one optimizer do it, or give '
        'each worker a share without end: tfps.input.shard, and repeat().'
      )
    if number not in self._aggregator:
      self._aggregator[number] = aggregation_lib.GradientAggregator(
        self._state, self._name, number, pieces
      )
    aggregator, turn = self._aggregator[number], self._turn(number)
    added = aggregator.add(pieces, self._sync_ops.for_sums(turn))
    with tf.control_dependencies(added):
      arrival = self._sync_ops.arrive(number, self._worker, turn, self._step)

    def lead() -> tuple[tf.Tensor, tf.Tensor]:
      first = writes.num_operations()
      update(aggregator.take_means(turn.version))
      if number == 0:
        self._count()
      done = after_writes(first, turn.version)
      with tf.control_dependencies([done]):
        following = self._sync_ops.release(number, done, arrival.enough)
      return tf.identity(following.version), tf.identity(following.quorum)

    version, quorum = tf.cond(arrival.leads, lead, lambda: tuple(arrival.after))
    self._points[number] = protocol_ops_lib.StepTicket(version, quorum)
    self._counted[-1] &= self._sync_ops.counts(arrival, turn, version)
    if number == 0:
      self._is_along = tf.equal(version, self._step + 1)

  def _turn(self, number: int) -> protocol_ops_lib.StepTicket:
    """That of a point, which is none for who is not along with the others."""
    turn = self._points[number]
    if number == 0:
      self._step = turn.version
      return turn
    never = tf.constant(protocol_ops_lib.NEVER, tf.int64)
    version = tf.where(self._is_along, turn.version, never)
    return turn._replace(version=version)


class StaleSyncStep:
  """The steps in one function of workers that keep together.

  Args:
    staleness_bound: that they keep.
    worker: who executes the function.

  Attributes:
    gate: what the steps' reads are to wait for.
    written: ends once all updates of the steps so far are made.
  """

  marked: frozenset[int] = frozenset()

  def __init__(
    self,
    staleness_bound: bounded_staleness_lib.StalenessBound,
    worker: tf.Tensor,
  ) -> None:
    self.gate: list[tf.Tensor] = []
    self.written: list[tf.Tensor] = []
    self._staleness_bound = staleness_bound
    self._worker = worker

  def after(self, num_steps: Any) -> 'StaleSyncStep':
    raise NotImplementedError('All steps are laid out in one graph.')

  @contextlib.contextmanager
  def step(self, number: int) -> Iterator[None]:
    """A step to be traced within; after it, one waits for the slowest."""
    del number
    first = writes.num_operations()
    yield
    done = after_writes(first, self._worker)
    self.written = [done]
    self.gate = [self._staleness_bound.advance(done)]


def num_counted(course: Any, num_steps: int) -> tf.Tensor:
  """How many steps of a function were applied; all where none can be late."""
  if isinstance(course, BarrierStep):
    return course.num_counted()
  return tf.constant(num_steps, tf.int64)


def after_writes(first: int, tensor: tf.Tensor) -> tf.Tensor:
  """A tensor, here, once all is written that a function writes.

  It comes here because ps do not see each other.

  Args:
    first: how many operations of the function to leave out.
    tensor: any.
  """
  written = [
    operation
    for operations in writes.by_place(first).values()
    for operation in operations
  ]
  with tf.control_dependencies(written):
    return tf.identity(tensor)
