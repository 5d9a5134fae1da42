"""Steps that add up the gradients of a group of workers.

The session is what the loops of training notify; see `sync.session` for the
one of workers that are synchronized through the ps.
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import copy
from typing import Any

import tensorflow as tf

from tfps._compat import graphs
from tfps._compat import writes
from tfps.updates import sessions
from tfps.updates import steppers
from tfps.updates.allreduce import membership as membership_lib
from tfps.updates.allreduce import reduction as reduction_lib
from tfps.updates.sync import participation
from tfps.updates.sync import step_sync

# Key of what `own_step` notes in a graph.
_WRITTEN = 'steps of functions of the user'


class AllReduceStep(steppers.Stepper):
  """Steps of which each begins to add up once the last has been applied.

  So the variables of a worker contain a whole number of steps whenever another
  one is lost.

  Args:
    reduction: adds up gradients.
    num_steps: counts the steps of the group.
    count: called at the end of each step.
    in_step: returns a context in which a step is traced.

  Attributes:
    written: tensors after which all updates of the steps so far are made.
  """

  def __init__(
    self,
    reduction: reduction_lib.Reduction,
    num_steps: tf.Variable,
    count: Callable[[], object],
    in_step: Callable[[], contextlib.AbstractContextManager[None]],
  ) -> None:
    self._in_step = in_step
    self.written: list[tf.Tensor] = []
    self._reduction = reduction
    self._num_steps = num_steps
    self._count = count

  def state(self) -> tuple[tf.Tensor, ...]:
    return (step_sync.token_after(self.written),)

  def after(self, num_steps: Any, *state: tf.Tensor) -> 'AllReduceStep':
    del num_steps
    later = copy.copy(self)
    later.written = list(state)
    return later

  @contextlib.contextmanager
  def step(self, number: Any) -> Iterator[None]:
    del number
    first = writes.num_operations()
    with self._in_step(), self._reduction.step(self.written):
      yield
    done = step_sync.after_writes(first, tf.constant(0))
    with tf.control_dependencies([done]):
      self._count()
      self.written = [tf.identity(self._num_steps.assign_add(1))]


class AllReduceSession(sessions.Session):
  """Steps of this worker, and its membership in the group.

  Args:
    membership: this worker's; None if there is a single worker.
    reduction: adds up gradients.
    num_steps: number of steps of the group, a variable of this process that is
      equal on all members.
    worker: number of this worker.
    tell: called with a worker's name and the number of steps that are applied
      twice because an execution was interrupted.

  Attributes:
    is_in_step: whether a step is being traced.
  """

  makes_one_update = True
  is_in_step = False
  _is_own_step = False

  def __init__(
    self,
    membership: membership_lib.Membership | None,
    reduction: reduction_lib.Reduction,
    num_steps: tf.Variable,
    *,
    worker: int,
    tell: Callable[[int], object],
  ) -> None:
    self._membership = membership
    self._reduction = reduction
    self._num_steps = num_steps
    self._worker = worker
    self._tell = tell
    # Number of steps of the group that the program has done or skipped.
    self._position = 0
    self._has_failed_attempt = False

  def worker(self) -> int:
    """Returns the number of this worker."""
    return self._worker

  def set_position(self, num_steps: int) -> None:
    """Sets the number of steps that this worker's variables contain.

    It has no effect once the worker was a member of the group.

    Args:
      num_steps: the number, such as that of a restored checkpoint.
    """
    if not self._position and num_steps > int(self._num_steps.numpy()):
      self._num_steps.assign(num_steps)
      self._position = num_steps

  def join(self) -> None:
    """Joins the group, unless this worker is a member.

    Raises:
      errors.DeadlineError: other workers did not come in time; names them.
      ValueError: this worker has other variables than the others.
    """
    member = self._membership
    if member is None or member.is_member:
      return
    member.join()
    self._position = int(self._num_steps.numpy())
    if member.is_partial:
      member.step_aside()  # until it has made the other variables

  def join_before_sum(self) -> None:
    """Joins the group where a function of the user's adds up values.

    Those of `fit` and `train` have an attempt that joins. What adds up nothing,
    such as a prediction, needs no other worker.
    """
    if self._is_own_step or not self.is_in_step:
      with tf.init_scope():
        self.join()

  def _copy_new_variables(self) -> None:
    """Makes all workers copy variables that they have made in a step.

    These are, for example, an optimizer's slots.
    """
    member = self._membership
    if member is not None and member.is_member and member.has_new_variables:
      with tf.init_scope():
        member.end()
        member.join()

  def prepare(self, attempt: participation.Attempt) -> bool:
    """Joins the group if due; returns whether steps are left to do.

    Args:
      attempt: of an execution. If it failed, others may have done all of it,
        and this process has their variables; else all of it is repeated.
    """
    if self._membership is None:
      return True
    number = attempt.num_steps
    self._copy_new_variables()
    if self._membership.is_member:  # it has done all steps, in any loop
      self._position = int(self._num_steps.numpy())
    else:
      # Others have done steps without this worker, whose program has not come
      # as far as theirs yet: it joins then, so that they need not wait for it.
      if self._position + number <= self._membership.place():
        self._position += number
        return False
      self._membership.join()
      if self._membership.is_first:
        self._position = int(self._num_steps.numpy())
    done = int(self._num_steps.numpy()) - self._position
    if done >= number:
      self._position += number
      if done > number:
        self._membership.step_aside()
      return False
    if done > 0:
      self._tell(done)
    self._position += done
    return True

  def join_again(self) -> None:
    """Joins the next generation after a failure, unless an attempt will."""
    has_attempt, self._has_failed_attempt = self._has_failed_attempt, False
    if not has_attempt:
      self.join()

  def change_if_due(self) -> None:
    """Joins the next generation if all have agreed to end this one."""
    if self._is_change_agreed():
      assert self._membership is not None
      self._membership.end()
      self.join()

  def _is_change_agreed(self) -> bool:
    member = self._membership
    if member is None or not member.is_member:
      return False
    return float(self._reduction.is_change_agreed.numpy()) > 0

  @contextlib.contextmanager
  def own_step(self, is_training: Callable[[], bool]) -> Iterator[None]:
    """Returns a context of a step of the user's own function.

    Args:
      is_training: returns, at its end, whether it counts as a step; others,
        which may add up values as well, only keep the order of sums.
    """
    # Tensors after which the steps of a function so far are made.
    written: list[Any] = graphs.once(_WRITTEN, list)
    first = 0 if tf.executing_eagerly() else writes.num_operations()
    self._is_own_step = True
    try:
      with self._in_step(), self._reduction.step(written):
        yield
        if not self._reduction.num_sums:
          return
    finally:
      self._is_own_step = False
    number = int(is_training())
    if tf.executing_eagerly():
      self._num_steps.assign_add(number)
      return
    done = step_sync.after_writes(first, tf.constant(0))
    with tf.control_dependencies([done]):
      written[:] = [tf.identity(self._num_steps.assign_add(number))]

  @contextlib.contextmanager
  def _in_step(self) -> Iterator[None]:
    self.is_in_step = True
    try:
      yield
      self._copy_new_variables()
    finally:
      self.is_in_step = False

  def sum_rows(self, rows: tf.Tensor, after: Any) -> tf.Tensor:
    """Returns the sums of what the workers' steps add to metrics.

    Args:
      rows: what this worker's steps add, a row for each.
      after: the steps.
    """
    if self._membership is None:
      return rows
    with self._reduction.step(after.written):
      (total,) = self._reduction.sum([rows])
    return total

  def sync_step(
    self,
    worker: tf.Tensor,
    *,
    count: Callable[[], object] = lambda: None,
    comes_and_goes: bool = False,
  ) -> AllReduceStep:
    """Returns the synchronization of steps in the function being traced.

    Args:
      worker: number of the worker that executes it, an int64 scalar.
      count: called at the end of each step.
      comes_and_goes: whether workers take part only while they have batches.
    """
    del worker, comes_and_goes  # they do not: there is no SplitQueue
    return AllReduceStep(self._reduction, self._num_steps, count, self._in_step)

  def expect(self, attempt: participation.Participation) -> None:
    """Does nothing: no other worker waits for what is scheduled."""

  def enter(self, attempt: participation.Participation, worker: int) -> None:
    """Does nothing: `prepare` has joined the group."""

  def fail(self, attempt: participation.Participation, worker: int) -> None:
    """Notes that an execution failed, and may be repeated."""
    self._has_failed_attempt = True

  def leave(self, attempt: Any) -> None:
    """Notes that an execution ended, and lets the group change if it is due."""
    del attempt
    self._position = int(self._num_steps.numpy())
    if self._membership is not None:
      self._membership.note_progress()
      if self._is_change_agreed():
        self._membership.end()

  def end(self, worker: int) -> None:
    """Leaves the group once all steps are done.

    Args:
      worker: number of this worker.
    """
    del worker
    if self._membership is not None:
      self._membership.leave()
