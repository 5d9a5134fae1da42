"""How a crew comes about, and how all of it come to have the same.

Who wants another round enters for it on the roster. Once all have who are
expected, it is closed, each makes its part of a ring, and all take over what
that one has who has added up most arrays.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
import dataclasses
import time

from absl import logging
import numpy as np
import tensorflow as tf

from tfps import errors
from tfps._utils import deadlines
from tfps._utils import ports as ports_lib
from tfps._utils import timeouts
from tfps.server import health
from tfps.updates.allreduce import collectives
from tfps.updates.allreduce import group_monitor
from tfps.updates.allreduce import local_state as local_state_lib
from tfps.updates.allreduce import membership_table as membership_table_lib


@dataclasses.dataclass(frozen=True)
class SyncSession:
  """What is to be done where gradients of what is on the ps meet.

  Attributes:
    restart: drops gradients that have come; nobody executes anything by then.
    take_in: has all wait for a worker.
    leave_out: has nobody wait for a worker until it executes something.
  """

  restart: Callable[[], object]
  take_in: Callable[[int], object]
  leave_out: Callable[[int], object]


class Rendezvous:
  """The rounds that this worker takes part in.

  Args:
    peers: all workers.
    own: the number of this one.
    membership: where they meet.
    holdings: what each has of its own.
    sync_session: of the gradients for the ps.
    monitor: breaks off the ring of who waits in vain.
    silence_secs: how long one may not answer.

  Attributes:
    place: how many arrays this worker has added up with others, be they
      gradients or what they agree on, or NEW.
    has_fallen_behind: whether others had closed a round without this worker,
      when it last entered for one, and it has not got on with what it had.
  """

  def __init__(
    self,
    peers: Sequence[group_monitor.Peer],
    own: int,
    membership: membership_table_lib.MembershipTable,
    holdings: local_state_lib.LocalState,
    sync_session: SyncSession,
    monitor: group_monitor.GroupMonitor,
    *,
    silence_secs: float,
  ) -> None:
    self.place = membership_table_lib.NEW
    self.has_fallen_behind = False
    self._number = 0  # of the last round that this worker was in
    self._peers = peers
    self._own = own
    self._membership = membership
    self._holdings = holdings
    self._sync_session = sync_session
    self._monitor = monitor
    self._silence_secs = silence_secs
    status = health.probe(peers[own].task, peers[own].address)
    self._incarnation = group_monitor.incarnation(status)

  def next(
    self, secs: float
  ) -> tuple[group_monitor.Round, membership_table_lib.State]:
    """The next round, once it has begun, and what was on the roster by then.

    Args:
      secs: how long to wait for others.

    Raises:
      errors.DeadlineError: names who has not come.
      tf.errors.OpError: a ps is lost.
      ValueError: nobody has what workers that are gone had, or this one does
        not hold what the others do.
    """
    deadline = deadlines.after(secs)
    self.has_fallen_behind = False
    while True:
      state = self._close_round(deadline, secs)
      made = self._make(state)
      if made is None:
        continue
      if self._are_ready(state, deadline) and self._begin(made, state, secs):
        return made, state
      made.ring.break_off()

  def hand_on(self, made: group_monitor.Round, source: int) -> None:
    """Has all of a crew take over what one has, and how far it has come.

    Args:
      made: the crew's round.
      source: the one's index in the ring.

    Raises:
      tf.errors.OpError: somebody is lost.
    """
    place = np.array([self.place], np.int64).view(np.int32)
    whole = np.concatenate([place, self._holdings.packed()])
    is_source = made.ring.index == source
    whole = made.ring.sum_of(whole if is_source else np.zeros_like(whole))
    if not is_source:
      self._holdings.unpack(whole[len(place) :])
    self.place = int(whole[: len(place)].view(np.int64)[0]) + 1
    made.place = self.place

  def leave(self, made: group_monitor.Round) -> None:
    """Says that this worker is done.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    self._enter(membership_table_lib.LEFT, made)

  def come_again(self, made: group_monitor.Round, secs: float) -> bool:
    """Goes on with the same crew, if all of it come again; whether they do.

    Raises: as `next`.
    """
    made.stint += 1
    self._enter(made.number, made)
    deadline = deadlines.after(secs)
    silence = group_monitor.Silence(self._peers, self._silence_secs)
    state = self._membership.read()
    while late := {
      i: state.entries[i]
      for i in made.elastic_group
      if not made.is_along(state.entries[i])
    }:
      if state.round != made.number or state.entered(made.number + 1):
        return False
      if silence.lost(late):
        return False
      if deadlines.is_over(deadline):
        raise self._not_come(late, secs)
      time.sleep(timeouts.current().poll_secs)
      state = self._membership.read()
    return self._begin(made, state, secs)

  def _begin(
    self,
    made: group_monitor.Round,
    state: membership_table_lib.State,
    secs: float,
  ) -> bool:
    """Has all begin with the same; whether they do, or somebody was lost."""
    made.is_in = True
    if made.ring.index == 0:
      for i in made.elastic_group:  # else updates would be made of who is first
        self._sync_session.take_in(i)
    try:
      return self._share(made, state, secs)
    except tf.errors.OpError as error:
      self._membership.read()  # raises if a ps is the cause
      logging.warning('%s', errors.first_line(error))
      return False

  def _enter(
    self,
    round: int,
    made: group_monitor.Round | None = None,
    *,
    port: int = 0,
  ) -> None:
    entry = membership_table_lib.Entry(
      round=round,
      port=port,
      place=self.place,
      stint=made.stint if made else 0,
      ready=made.number if made else 0,
      incarnation=self._incarnation,
      digest=self._holdings.digest(),
    )
    self._membership.enter(self._own, entry)

  def _close_round(
    self, deadline: float | None, secs: float
  ) -> membership_table_lib.State:
    """Enters for the next round; what is there once it is closed with this."""
    state = self._membership.read()
    silence = group_monitor.Silence(self._peers, self._silence_secs)
    round = 0
    while (
      state.round < round or self._own not in state.elastic_group or not round
    ):
      if state.round >= round:
        self._look_behind(state)
        round = state.round + 1
        self._enter(round, port=ports_lib.pick())
      missing = self._missing(state, round, silence)
      if not missing:
        self._membership.close(round)
      elif deadlines.is_over(deadline):
        raise self._not_come(missing, secs)
      else:
        time.sleep(timeouts.current().poll_secs)
      state = self._membership.read()
    self._number = state.round
    return state

  def _look_behind(self, state: membership_table_lib.State) -> None:
    """Has this worker be the last of all, if others have gone on without it.

    By itself it may have come farther than they have.
    """
    if state.round > self._number and self._own not in state.elastic_group:
      self.has_fallen_behind = True
      self.place = min(self.place, 0)

  def _missing(
    self,
    state: membership_table_lib.State,
    round: int,
    silence: group_monitor.Silence,
  ) -> set[int]:
    """Who is expected and has not entered."""
    late = set(self._expected(state)) - set(state.entered(round))
    if state.round:
      entries = {i: state.entries[i] for i in late - {self._own}}
      for lost in silence.lost(entries):
        self._sync_session.leave_out(lost)
        late.discard(lost)
    return late

  def _not_come(self, late: Iterable[int], secs: float) -> errors.DeadlineError:
    return errors.DeadlineError(
      f'After {secs:g} seconds, {self._peers[self._own].task} still waits for '
      f'{self._names(late)} to add up gradients with. Do all workers run the '
      f'same program?'
    )

  def _names(self, workers: Iterable[int]) -> str:
    return group_monitor.names(self._peers, workers)

  def _expected(self, state: membership_table_lib.State) -> Sequence[int]:
    """All at first; then who was there and is not done, or all once all are."""
    if not state.round:
      return range(len(self._peers))
    going_on = [i for i in state.elastic_group if not state.has_left(i)]
    return going_on or state.elastic_group

  def _make(
    self, state: membership_table_lib.State
  ) -> group_monitor.Round | None:
    """The round, with a ring that others may not be at yet.

    Returns:
      None if the port is taken by now.
    """
    elastic_group = state.elastic_group
    places = [state.entries[i].place for i in elastic_group]
    if state.has_begun and max(places) == membership_table_lib.NEW:
      raise ValueError(
        'HybridStrategy: the ps have variables of workers that are gone, and '
        'with these went what each worker had of its own. Start the ps anew, '
        'too; training goes on from its checkpoint.'
      )
    hosts = [self._peers[i].address.rpartition(':')[0] for i in elastic_group]
    ports = [state.entries[i].port for i in elastic_group]
    try:
      ring = collectives.CollectiveGroup(
        [f'{host}:{port}' for host, port in zip(hosts, ports, strict=True)],
        elastic_group.index(self._own),
      )
    except tf.errors.OpError as error:
      logging.warning('Another port: %s', errors.first_line(error))
      return None
    if ring.index == 0:
      self._sync_session.restart()
      for i in set(range(len(self._peers))) - set(elastic_group):
        self._sync_session.leave_out(i)
    made = group_monitor.Round(state.round, elastic_group, ring)
    self._enter(state.round, made, port=ports[ring.index])
    return made

  def _are_ready(
    self, state: membership_table_lib.State, deadline: float | None
  ) -> bool:
    """Waits for the servers of all; whether they are there."""
    silence = group_monitor.Silence(self._peers, self._silence_secs)
    now = state
    while now.round == state.round and not deadlines.is_over(deadline):
      late = {
        i: now.entries[i]
        for i in state.elastic_group
        if now.entries[i].ready < state.round
      }
      if not late:
        return True
      if any(entry.round != state.round for entry in late.values()):
        return False
      if silence.lost(late):
        return False
      time.sleep(timeouts.current().poll_secs)
      now = self._membership.read()
    return False

  def _share(
    self,
    made: group_monitor.Round,
    state: membership_table_lib.State,
    secs: float,
  ) -> bool:
    """Has all take over what one has; whether all agree on whom."""
    entries = state.entries
    source = max(made.elastic_group, key=lambda i: (entries[i].place, -i))
    votes = np.zeros([len(self._peers)], np.int32)
    votes[source] = 1
    made.place = group_monitor.NOWHERE
    with self._monitor.during(made, secs):
      if made.ring.sum_of(votes)[source] != len(made.elastic_group):
        return False
      self._check(state, source)
      packed = self._holdings.packed()
      given = packed if source == self._own else np.zeros_like(packed)
      whole = made.ring.sum_of(given)
    if source != self._own:
      self._holdings.unpack(whole)
    self.place = made.place = max(entries[source].place, 0)
    self._membership.note_begun()
    return True

  def _check(self, state: membership_table_lib.State, source: int) -> None:
    if state.entries[self._own].digest == state.entries[source].digest:
      return
    self._enter(membership_table_lib.LEFT)
    own, other = self._peers[self._own].task, self._peers[source].task
    raise ValueError(
      f'HybridStrategy: {own} has other variables than {other}, which has '
      "trained already. Do both run the same program? An optimizer's slots are "
      'to be made in the scope: optimizer.build(model.trainable_variables).'
    )
