"""Group of workers that average gradients, and continue without lost ones.

The local state of the group's workers is equal after each array that they have
added up. When a worker is lost, is done, comes back or begins, the members meet
at a rendezvous (`rendezvous` states that protocol), form a new collective
group, and copy the local state of the most advanced one.

Where batches come from a queue, some workers may have none. The others do steps
among themselves, and hand their state to all in `ElasticGroup.settle`.
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import TypeVar

from absl import logging
import numpy as np
import tensorflow as tf

from tfps import errors
from tfps.cluster import spec as spec_lib
from tfps.updates.allreduce import agreements
from tfps.updates.allreduce import collectives
from tfps.updates.allreduce import group_monitor
from tfps.updates.allreduce import local_state as local_state_lib
from tfps.updates.allreduce import membership_table as membership_table_lib
from tfps.updates.allreduce import rendezvous

# Errors of executions whose connection was broken.
_CUT_OFF = (
  tf.errors.AbortedError,
  tf.errors.CancelledError,
  tf.errors.UnavailableError,
)

_Result = TypeVar('_Result')

_RESTART = 'Restart all tasks; training continues from its checkpoint.'


class ElasticGroup:
  """Elastic group of this worker.

  Args:
    peers: all workers.
    own: number of this worker.
    membership: membership table on a ps.
    local_state: variables that each worker has for itself.
    hooks: hooks into the synchronized updates on the ps.
    waits: timeouts.
    tell: called with 'lost' or 'back' and the names of such workers.
  """

  def __init__(
    self,
    peers: Sequence[group_monitor.Peer],
    own: int,
    membership: membership_table_lib.MembershipTable,
    local_state: local_state_lib.LocalState,
    hooks: rendezvous.UpdateHooks,
    *,
    waits: group_monitor.Waits,
    tell: Callable[[str, Sequence[str]], object],
  ) -> None:
    self._peers = peers
    self._own = own
    self._membership = membership
    self._hooks = hooks
    self._waits = waits
    self._tell = tell
    self._round: group_monitor.Round | None = None
    self._monitor = group_monitor.GroupMonitor(
      peers,
      own,
      membership,
      silence_secs=waits.silence_secs,
      leave_out=hooks.leave_out,
    )
    self._rendezvous = rendezvous.Rendezvous(
      peers,
      own,
      membership,
      local_state,
      hooks,
      self._monitor,
      silence_secs=waits.silence_secs,
    )
    self._has_left = False
    self._is_broken = False
    self._needs_rendezvous = True
    self._is_change_requested = False
    # Which workers do steps, until the others receive their state.
    self._subset: agreements.Agreement | None = None

  @property
  def task(self) -> spec_lib.Task:
    """Name of this worker."""
    return self._peers[self._own].task

  def join(self) -> None:
    """Joins the next rendezvous if one is due; called before steps.

    Raises:
      errors.DeadlineError: other workers did not come in time; names them.
      tf.errors.OpError: a ps is lost.
      ValueError: the local state of all earlier workers is lost, or this worker
        has other variables than the others.
    """
    if self._has_left:
      self._needs_rendezvous |= not self._resume()
      self._has_left = False
    if self._needs_rendezvous:
      self._join_next()

  def begin_mean(self, vector: np.ndarray) -> collectives.Sum:
    """Begins to average gradients.

    The vector carries whether a worker requests a rendezvous, so that all leave
    the group after the same step.

    Args:
      vector: gradients of this worker, floats [n].

    Returns:
      The sum under way, for `end_mean`.

    Raises:
      tf.errors.OpError: there is no group.
    """
    if self._round is None:
      raise tf.errors.FailedPreconditionError(None, None, 'No elastic group.')
    requests = np.full([1], self._monitor.is_change_requested, vector.dtype)
    collective, part = self._round.collective, self._subset
    group = collective.subgroup(part.members) if part else collectives.WHOLE
    return collective.begin_mean(np.concatenate([vector, requests]), group)

  def end_mean(self, begun: collectives.Sum) -> np.ndarray:
    """Returns the mean over the workers that do this step, once it is there.

    Args:
      begun: result of `begin_mean`.

    Raises:
      tf.errors.OpError: a worker is lost or done, and a rendezvous is due.
    """
    mean = self._collective(begun.result)
    self._advance()
    if self._subset is None:  # else some workers would not know
      self._is_change_requested |= bool(mean[-1] > 0)
    return mean[:-1]

  def agree(self, ready: int, *, finished: bool) -> agreements.Agreement:
    """Agrees with all workers on the steps to do on batches of a queue.

    It joins a rendezvous if one is requested. Updates on the ps wait only for
    workers that have batches.

    Args:
      ready: number of batches of this worker.
      finished: whether this worker has seen that no work is left.

    Raises:
      tf.errors.OpError: a worker is lost or done, and a rendezvous is due.
      errors.DeadlineError: see `join`.
      ValueError: see `join`.
    """
    agreed = self._agree_once(ready, finished=finished)
    while agreed.is_change_requested:
      self._needs_rendezvous = True
      agreed = self._agree_once(ready, finished=finished)
    self._subset = agreed if agreed.is_partial else None
    if self._subset is not None and self._round is not None:
      self._round.collective.subgroup(self._subset.members)
    return agreed

  def settle(self) -> bool:
    """Copies the state of workers that did steps to those that did none.

    All workers call it after their steps.

    Returns:
      Whether the steps of this worker are part of the common state.

    Raises:
      tf.errors.OpError: a worker is lost or done, and a rendezvous is due.
      errors.DeadlineError: see `join`.
      ValueError: see `join`.
    """
    part, made = self._subset, self._round
    if part is None:
      return True
    if made is None or self._needs_rendezvous:
      self.join()
      return not self._rendezvous.has_fallen_behind
    if made.collective.index not in part.members:
      made.place = group_monitor.NOWHERE
      made.num_awaited = part.number
    self._collective(lambda: self._rendezvous.copy_from(made, part.members[0]))
    made.num_awaited = 1
    self._subset = None
    return True

  def end_steps(self) -> None:
    """Notes that all workers of the group have done their steps."""
    self._needs_rendezvous |= self._is_change_requested

  def should_retry(self, error: tf.errors.OpError) -> bool:
    """Returns whether to repeat failed steps after a rendezvous.

    Args:
      error: error of the steps, while all ps are alive.

    Raises:
      errors.DeadlineError: workers that are alive did not come to the same
        step in time; names them.
    """
    if not self._is_broken:
      return self._is_cut_off(error)
    self._is_broken = False
    if self._monitor.has_timed_out:
      others = set(range(len(self._peers))) - {self._own}
      named = group_monitor.names(self._peers, others)
      raise errors.DeadlineError(
        f'{self.task} and {named} have not come to the same step within '
        f'{self._waits.step_secs:g} seconds of each other, although they are '
        f'alive. Does one of them do other work between steps? {_RESTART}'
      )
    return True

  def _is_cut_off(self, error: tf.errors.OpError) -> bool:
    """Returns whether this worker's own connection failed, as after a freeze.

    It may have made half of an update, and others may lack the one before, so
    it reports less progress than any of them; unless it did steps alone, when
    no other worker has its state.
    """
    if self._round is None or not isinstance(error, _CUT_OFF):
      return False
    self._needs_rendezvous = True
    if self._subset is None or len(self._subset.members) > 1:
      self._rendezvous.place = max(self._rendezvous.place - 2, 0)
    return True

  def leave(self) -> None:
    """Leaves the group, so that no worker waits for this one.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    if self._round is not None and not self._has_left:
      self._monitor.stop()  # others may still be receiving from its server
      self._has_left = True
      self._rendezvous.leave(self._round)

  def interrupt(self) -> None:
    """Ends this worker's part in the round, as a ps is lost; idempotent.

    All workers do so, and meet again once the ps has its variables.
    """
    self._needs_rendezvous = True
    self._monitor.stop()
    if self._round is not None and not self._has_left:
      self._round.collective.abort()

  def note_undone(self) -> None:
    """Notes that this worker has undone a step, which others may have done."""
    self._needs_rendezvous = True
    self._rendezvous.place = min(self._rendezvous.place, 0)

  def note_restored(self, *, is_chief: bool) -> None:
    """Makes the membership table anew, or this worker's entry if it is done.

    Args:
      is_chief: whether this worker makes the table.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    if is_chief:
      has_begun = self._rendezvous.place != membership_table_lib.NEW
      self._membership.renew(has_begun=has_begun)
    if self._round is not None and self._has_left:
      self._rendezvous.leave(self._round)

  def _agree_once(self, ready: int, *, finished: bool) -> agreements.Agreement:
    self.join()
    made = self._round
    assert made is not None
    self._set_included(made, ready > 0)
    own = agreements.facts(
      ready,
      finished=finished,
      requests_change=self._monitor.is_change_requested,
      index=made.collective.index,
      num_workers=made.collective.size,
    )
    total = self._collective(lambda: made.collective.sum(own))
    self._advance()
    return agreements.of(total)

  def _collective(self, function: Callable[[], _Result]) -> _Result:
    """Returns the result of a collective; on failure a rendezvous is due."""
    try:
      return function()
    except tf.errors.OpError:
      self._is_broken = self._needs_rendezvous = True
      raise

  def _advance(self) -> None:
    if self._round is not None:
      self._rendezvous.place += 1
      self._round.place = self._rendezvous.place

  def _set_included(self, made: group_monitor.Round, is_included: bool) -> None:
    """Includes this worker in updates on the ps, or excludes it."""
    if made.is_included != is_included:
      if is_included:
        self._hooks.take_in(self._own)
      else:
        self._hooks.leave_out(self._own)
      made.is_included = is_included

  def _resume(self) -> bool:
    """Returns whether the same group could continue."""
    made = self._round
    if made is None or self._needs_rendezvous:
      return False
    if not self._rendezvous.resume(made, self._waits.step_secs):
      return False
    self._begin(made)
    return True

  def _join_next(self) -> None:
    self._monitor.stop()
    before, self._round = self._round, None
    if before is not None:
      before.collective.abort()
      # Otherwise others may wait for its gradient.
      self._hooks.leave_out(self._own)
    is_first = self._rendezvous.place == membership_table_lib.NEW
    made, state = self._rendezvous.next(
      self._waits.connect_secs if is_first else self._waits.step_secs
    )
    self._report(before, made, state)
    self._begin(made)

  def _begin(self, made: group_monitor.Round) -> None:
    self._round = made
    self._needs_rendezvous = self._is_broken = self._is_change_requested = False
    self._subset = None
    self._monitor.begin(made, self._waits.step_secs)

  def _report(
    self,
    before: group_monitor.Round | None,
    made: group_monitor.Round,
    state: membership_table_lib.State,
  ) -> None:
    elastic_group = set(made.elastic_group)
    others = (
      group_monitor.names(self._peers, elastic_group - {self._own}) or 'nobody'
    )
    logging.info('%s adds up gradients with %s.', self.task, others)
    if before is None:
      return
    gone = set(before.elastic_group) - elastic_group
    lost = [i for i in gone if not state.has_left(i)]
    back = [
      i
      for i in made.elastic_group
      if state.entries[i].place == membership_table_lib.NEW
    ]
    for kind, workers in (('lost', lost), ('back', back)):
      if workers:
        self._tell(kind, [str(self._peers[i].task) for i in sorted(workers)])
