"""Workers that add up gradients, and go on without who is lost or done.

What a crew's workers have of their own is alike after each array that they have
added up. When somebody is lost, the others meet on the roster, make a ring of
those who are left, and all take over what that one has who has come farthest.
In the same way who comes back, or begins, gets what the others have.

Where batches are of a queue, some may have none. The others do steps among
themselves, and hand on what has come of it.
"""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
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

# With what executions end whose connection was broken.
_CUT_OFF = (
  tf.errors.AbortedError,
  tf.errors.CancelledError,
  tf.errors.UnavailableError,
)

_Result = TypeVar('_Result')

_START = 'Start all tasks again; training goes on from its checkpoint.'


@dataclasses.dataclass(frozen=True)
class Waits:
  """How long to wait.

  Attributes:
    connect_secs: until all have begun.
    step_secs: for others that live, in a step.
    silence_secs: for those that do not answer.
  """

  connect_secs: float
  step_secs: float
  silence_secs: float


class ElasticGroup:
  """The crew that this worker is in, or is to be in.

  Args:
    peers: all workers.
    own: the number of this one.
    membership: where they meet.
    holdings: what each has of its own.
    sync_session: of the gradients for the ps.
    waits: how long to wait for others.
    tell: gets what has become of others, 'lost' or 'back', and who it is.
  """

  def __init__(
    self,
    peers: Sequence[group_monitor.Peer],
    own: int,
    membership: membership_table_lib.MembershipTable,
    holdings: local_state_lib.LocalState,
    sync_session: rendezvous.SyncSession,
    *,
    waits: Waits,
    tell: Callable[[str, Sequence[str]], object],
  ) -> None:
    self._peers = peers
    self._own = own
    self._sync_session = sync_session
    self._waits = waits
    self._tell = tell
    self._round: group_monitor.Round | None = None
    self._monitor = group_monitor.GroupMonitor(
      peers,
      own,
      membership,
      silence_secs=waits.silence_secs,
      leave_out=sync_session.leave_out,
    )
    self._rounds = rendezvous.Rendezvous(
      peers,
      own,
      membership,
      holdings,
      sync_session,
      self._monitor,
      silence_secs=waits.silence_secs,
    )
    self._has_left = False
    self._is_broken = False
    self._is_to_meet = True
    self._is_asked_for = False
    # Who does steps, where some do none and have not got yet what comes of it.
    self._part: agreements.Agreement | None = None

  @property
  def task(self) -> spec_lib.Task:
    """This worker."""
    return self._peers[self._own].task

  def take_up(self) -> None:
    """To be called before steps: meets the others if anybody asks for it.

    Raises:
      errors.DeadlineError: names who has not come.
      tf.errors.OpError: a ps is lost.
      ValueError: nobody has what workers that are gone had, or this one does
        not hold what the others do.
    """
    if self._has_left:
      self._is_to_meet |= not self._come_again()
      self._has_left = False
    if self._is_to_meet:
      self._meet()

  def begin_mean(self, vector: np.ndarray) -> collectives.Sum:
    """Begins to add up gradients of floats, each worker's vector.

    With it goes whether somebody asks for another crew, so that all leave this
    one after the same steps.

    Raises:
      tf.errors.OpError: there is no crew.
    """
    if self._round is None:
      raise tf.errors.FailedPreconditionError(None, None, 'There is no crew.')
    asks = np.full([1], self._monitor.somebody_asks, vector.dtype)
    ring, part = self._round.ring, self._part
    group = ring.group(part.members) if part else collectives.WHOLE
    return ring.begin_mean(np.concatenate([vector, asks]), group)

  def end_mean(self, begun: collectives.Sum) -> np.ndarray:
    """The mean of the vectors of all, or of all that do this step.

    Raises:
      tf.errors.OpError: somebody is lost or done, and a crew has to be made.
    """
    mean = self._joining(begun.result)
    self._go_ahead()
    if self._part is None:  # else some would not know
      self._is_asked_for |= bool(mean[-1] > 0)
    return mean[:-1]

  def agree(self, ready: int, *, finished: bool) -> agreements.Agreement:
    """Has all find out who has batches, and how many steps are done on them.

    Meets the others if anybody asks for it. Updates on the ps wait for those
    alone who have batches.

    Args:
      ready: how many this worker has.
      finished: whether it has seen that all is done.

    Raises:
      tf.errors.OpError: somebody is lost or done, and a crew has to be made.
      Others: as `take_up`.
    """
    agreed = self._agree_once(ready, finished=finished)
    while agreed.is_asked_for:
      self._is_to_meet = True
      agreed = self._agree_once(ready, finished=finished)
    self._part = agreed if agreed.is_partial else None
    if self._part is not None and self._round is not None:
      self._round.ring.group(self._part.members)
    return agreed

  def settle(self) -> bool:
    """Has all hold what some have done; to be called by all after their steps.

    Returns:
      Whether what this worker has done is in what all have.

    Raises:
      tf.errors.OpError: somebody is lost or done, and a crew has to be made.
      Others: as `take_up`.
    """
    part, made = self._part, self._round
    if part is None:
      return True
    if made is None or self._is_to_meet:
      self.take_up()
      return not self._rounds.has_fallen_behind
    if made.ring.index not in part.members:
      made.place = group_monitor.NOWHERE
      made.num_awaited = part.number
    self._joining(lambda: self._rounds.hand_on(made, part.members[0]))
    made.num_awaited = 1
    self._part = None
    return True

  def end_steps(self) -> None:
    """To be called after steps that all of the crew have done."""
    self._is_to_meet |= self._is_asked_for

  def is_to_go_on(self, error: tf.errors.OpError) -> bool:
    """Whether what has failed is to be tried again, with another crew.

    Args:
      error: with which it has failed, while all ps are alive.

    Raises:
      errors.DeadlineError: names who lives, and has not come to the same step.
    """
    if not self._is_broken:
      return self._is_cut_off(error)
    self._is_broken = False
    if self._monitor.has_waited_too_long:
      others = set(range(len(self._peers))) - {self._own}
      named = group_monitor.names(self._peers, others)
      raise errors.DeadlineError(
        f'{self.task} and {named} have not come to the same step within '
        f'{self._waits.step_secs:g} seconds of each other. They are '
        f'alive: do they do something else that takes longer? {_START}'
      )
    return True

  def _is_cut_off(self, error: tf.errors.OpError) -> bool:
    """Whether this worker has failed for itself, as once it was frozen.

    It may have made one update by half, and others may lack the one before: it
    says of itself that it has less than any of them. Only where it did steps
    alone has nobody what it has.
    """
    if self._round is None or not isinstance(error, _CUT_OFF):
      return False
    self._is_to_meet = True
    if self._part is None or len(self._part.members) > 1:
      self._rounds.place = max(self._rounds.place - 2, 0)
    return True

  def leave(self) -> None:
    """Says that this worker is done, so that nobody waits for it.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    if self._round is not None and not self._has_left:
      self._monitor.stop()  # its ring goes on with what others have not got yet
      self._has_left = True
      self._rounds.leave(self._round)

  def _agree_once(self, ready: int, *, finished: bool) -> agreements.Agreement:
    self.take_up()
    made = self._round
    assert made is not None
    self._come_in_or_out(made, ready > 0)
    own = agreements.facts(
      ready,
      finished=finished,
      asks=self._monitor.somebody_asks,
      index=made.ring.index,
      num_workers=made.ring.number,
    )
    total = self._joining(lambda: made.ring.sum_of(own))
    self._go_ahead()
    return agreements.of(total)

  def _joining(self, function: Callable[[], _Result]) -> _Result:
    """The result of what takes others, who may be lost."""
    try:
      return function()
    except tf.errors.OpError:
      self._is_broken = self._is_to_meet = True
      raise

  def _go_ahead(self) -> None:
    if self._round is not None:
      self._rounds.place += 1
      self._round.place = self._rounds.place

  def _come_in_or_out(self, made: group_monitor.Round, is_in: bool) -> None:
    """Has updates on the ps wait for this worker, or not."""
    if made.is_in != is_in:
      if is_in:
        self._sync_session.take_in(self._own)
      else:
        self._sync_session.leave_out(self._own)
      made.is_in = is_in

  def _come_again(self) -> bool:
    """Goes on with the same crew; whether that can be."""
    made = self._round
    if made is None or self._is_to_meet:
      return False
    if not self._rounds.come_again(made, self._waits.step_secs):
      return False
    self._begin(made)
    return True

  def _meet(self) -> None:
    self._monitor.stop()
    before, self._round = self._round, None
    if before is not None:
      before.ring.break_off()
      # Others may wait for its gradient, which does not come.
      self._sync_session.leave_out(self._own)
    is_first = self._rounds.place == membership_table_lib.NEW
    made, state = self._rounds.next(
      self._waits.connect_secs if is_first else self._waits.step_secs
    )
    self._say(before, made, state)
    self._begin(made)

  def _begin(self, made: group_monitor.Round) -> None:
    self._round = made
    self._is_to_meet = self._is_broken = self._is_asked_for = False
    self._part = None
    self._monitor.begin(made, self._waits.step_secs)

  def _say(
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
    fresh = membership_table_lib.NEW
    back = [i for i in made.elastic_group if state.entries[i].place == fresh]
    for kind, who in (('lost', lost), ('back', back)):
      if who:
        self._tell(kind, [str(self._peers[i].task) for i in sorted(who)])
