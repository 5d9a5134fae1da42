"""Rendezvous of an elastic group: members, collective group, common state.

States of a worker, in the membership table: outside of any round; entered for a
round; member of a closed round; ready, once its server for collectives runs;
training; LEFT, once it is done.

Messages (`membership_table`): `enter` for the next round, by a worker that
begins or finds another lost, done or come; `close`, by any worker once all
expected ones have entered: first all workers, later the living members that are
not done; `enter` again with `ready`, or to resume in the same round; then the
members vote by a collective for the most advanced one, whose state all copy;
`note_begun`. A worker that cannot go on with a round aborts it and enters for
the next.

With a `Recovery`, all workers leave the round when a ps is lost, whatever it
has. Once it has its variables again, they enter for the next round. If the
table was lost with it, the chief makes it anew before others use it: without
members, so that all workers are expected that are alive, and with a number
above those of earlier rounds.

Invariant: no number is that of two rounds. The members of a round have equal
local state before each step. A worker outside of it changes nothing that they
use, and if others closed a round without it, it takes their state and gives up
its own.
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
class UpdateHooks:
  """Hooks into the synchronized updates of variables on the ps.

  Attributes:
    restart: drops pending gradients; called while no worker executes.
    take_in: includes a worker in updates.
    leave_out: excludes a worker from updates until it executes something.
  """

  restart: Callable[[], object]
  take_in: Callable[[int], object]
  leave_out: Callable[[int], object]


class Rendezvous:
  """Takes part in rounds for this worker.

  Args:
    peers: all workers.
    own: number of this worker.
    membership: membership table on a ps.
    local_state: variables that each worker has for itself.
    hooks: hooks into the synchronized updates on the ps.
    monitor: aborts collectives for which a worker does not come.
    silence_secs: seconds for which a worker may not answer.

  Attributes:
    place: number of arrays that this worker has added up with others, gradients
      or agreements, or NEW.
    has_fallen_behind: whether others had closed a round without this worker
      when it last entered for one, so that its own state was given up.
  """

  def __init__(
    self,
    peers: Sequence[group_monitor.Peer],
    own: int,
    membership: membership_table_lib.MembershipTable,
    local_state: local_state_lib.LocalState,
    hooks: UpdateHooks,
    monitor: group_monitor.GroupMonitor,
    *,
    silence_secs: float,
  ) -> None:
    self.place = membership_table_lib.NEW
    self.has_fallen_behind = False
    self._number = 0  # of this worker's last round
    self._peers = peers
    self._own = own
    self._membership = membership
    self._local_state = local_state
    self._hooks = hooks
    self._monitor = monitor
    self._silence_secs = silence_secs
    status = health.probe(peers[own].task, peers[own].address)
    self._incarnation = group_monitor.incarnation(status)

  def next(
    self, secs: float
  ) -> tuple[group_monitor.Round, membership_table_lib.State]:
    """Joins the next round and waits until it has begun.

    Args:
      secs: seconds to wait for other workers.

    Returns:
      The round, and the content of the membership table when it was closed.

    Raises:
      errors.DeadlineError: other workers did not come in time; names them.
      tf.errors.OpError: a ps is lost.
      ValueError: the local state of all earlier workers is lost, or this worker
        has other variables than the others.
    """
    deadline = deadlines.after(secs)
    self.has_fallen_behind = False
    while True:
      state = self._close_round(deadline, secs)
      made = self._start_server(state)
      if made is None:
        continue
      if self._wait_until_ready(state, deadline) and self._begin(
        made, state, secs
      ):
        return made, state
      made.collective.abort()

  def copy_from(self, made: group_monitor.Round, source: int) -> None:
    """Copies the local state and the place of one worker to all.

    Args:
      made: current round.
      source: index of that worker in the collective group.

    Raises:
      tf.errors.OpError: a worker is lost.
    """
    place = np.array([self.place], np.int64).view(np.int32)
    whole = np.concatenate([place, self._local_state.packed()])
    is_source = made.collective.index == source
    whole = made.collective.sum(whole if is_source else np.zeros_like(whole))
    if not is_source:
      self._local_state.unpack(whole[len(place) :])
    self.place = int(whole[: len(place)].view(np.int64)[0]) + 1
    made.place = self.place

  def leave(self, made: group_monitor.Round) -> None:
    """Enters this worker as done.

    Args:
      made: current round.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    self._enter(membership_table_lib.LEFT, made)

  def resume(self, made: group_monitor.Round, secs: float) -> bool:
    """Continues the same round if all its workers resume.

    Args:
      made: round in which this worker was done.
      secs: seconds to wait for the others.

    Returns:
      Whether they do.

    Raises:
      errors.DeadlineError: see `next`.
      tf.errors.OpError: see `next`.
      ValueError: see `next`.
    """
    made.num_resumed += 1
    self._enter(made.number, made)
    deadline = deadlines.after(secs)
    detector = group_monitor.LossDetector(self._peers, self._silence_secs)
    state = self._membership.read()
    while late := {
      i: state.entries[i]
      for i in made.elastic_group
      if not made.is_in_step(state.entries[i])
    }:
      if state.round != made.number or state.entered(made.number + 1):
        return False
      if detector.lost(late):
        return False
      if deadlines.is_over(deadline):
        raise self._timeout_error(late, secs)
      time.sleep(timeouts.current().poll_secs)
      state = self._membership.read()
    return self._begin(made, state, secs)

  def _begin(
    self,
    made: group_monitor.Round,
    state: membership_table_lib.State,
    secs: float,
  ) -> bool:
    """Copies the common state; returns whether no worker was lost."""
    made.is_included = True
    if made.collective.index == 0:
      for (
        i
      ) in made.elastic_group:  # else the first worker would make updates alone
        self._hooks.take_in(i)
    try:
      return self._copy_state(made, state, secs)
    except tf.errors.OpError as error:
      self._membership.read()  # raises an error if a ps is lost
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
      num_resumed=made.num_resumed if made else 0,
      ready=made.number if made else 0,
      incarnation=self._incarnation,
      digest=self._local_state.digest(),
    )
    self._membership.enter(self._own, entry)

  def _close_round(
    self, deadline: float | None, secs: float
  ) -> membership_table_lib.State:
    """Enters for rounds until one is closed with this worker; returns it."""
    state = self._membership.read()
    detector = group_monitor.LossDetector(self._peers, self._silence_secs)
    round = 0
    while (
      state.round < round or self._own not in state.elastic_group or not round
    ):
      if state.round >= round:
        self._give_up_state(state)
        round = state.round + 1
        self._enter(round, port=ports_lib.pick())
      missing = self._missing(state, round, detector)
      if not missing:
        self._membership.close(round)
      elif deadlines.is_over(deadline):
        raise self._timeout_error(missing, secs)
      else:
        time.sleep(timeouts.current().poll_secs)
      state = self._membership.read()
    self._number = state.round
    return state

  def _give_up_state(self, state: membership_table_lib.State) -> None:
    """Gives up this worker's state if others have closed a round without it.

    By itself it may have come farther than they have.
    """
    members = state.elastic_group
    if state.round > self._number and members and self._own not in members:
      self.has_fallen_behind = True
      self.place = min(self.place, 0)

  def _missing(
    self,
    state: membership_table_lib.State,
    round: int,
    detector: group_monitor.LossDetector,
  ) -> set[int]:
    """Returns expected workers that have not entered, excluding lost ones."""
    late = set(self._expected(state)) - set(state.entered(round))
    if state.elastic_group or state.has_begun:
      entries = {i: state.entries[i] for i in late - {self._own}}
      for lost in detector.lost(entries):
        self._hooks.leave_out(lost)
        late.discard(lost)
    return late

  def _timeout_error(
    self, late: Iterable[int], secs: float
  ) -> errors.DeadlineError:
    return errors.DeadlineError(
      f'After {secs:g} seconds, {self._peers[self._own].task} still waits for '
      f'{self._names(late)} to average gradients with. Do all workers run the '
      f'same program?'
    )

  def _names(self, workers: Iterable[int]) -> str:
    return group_monitor.names(self._peers, workers)

  def _expected(self, state: membership_table_lib.State) -> Sequence[int]:
    """Returns all workers at first, later those of the round not done."""
    members = state.elastic_group or range(len(self._peers))
    going_on = [i for i in members if not state.has_left(i)]
    return going_on or members

  def _start_server(
    self, state: membership_table_lib.State
  ) -> group_monitor.Round | None:
    """Starts this worker's server of a closed round.

    Returns:
      The round; None if the port has been taken by another process.
    """
    elastic_group = state.elastic_group
    places = [state.entries[i].place for i in elastic_group]
    if state.has_begun and max(places) == membership_table_lib.NEW:
      raise ValueError(membership_table_lib.GONE)
    hosts = [self._peers[i].address.rpartition(':')[0] for i in elastic_group]
    ports = [state.entries[i].port for i in elastic_group]
    try:
      collective = collectives.CollectiveGroup(
        [f'{host}:{port}' for host, port in zip(hosts, ports, strict=True)],
        elastic_group.index(self._own),
      )
    except tf.errors.OpError as error:
      logging.warning(
        'Could not start the server for collectives on port %d, takes another: '
        '%s',
        ports[elastic_group.index(self._own)],
        errors.first_line(error),
      )
      return None
    if collective.index == 0:
      self._hooks.restart()
      for i in set(range(len(self._peers))) - set(elastic_group):
        self._hooks.leave_out(i)
    made = group_monitor.Round(state.round, elastic_group, collective)
    self._enter(state.round, made, port=ports[collective.index])
    return made

  def _wait_until_ready(
    self, state: membership_table_lib.State, deadline: float | None
  ) -> bool:
    """Waits until all members are ready; returns whether they are."""
    detector = group_monitor.LossDetector(self._peers, self._silence_secs)
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
      if detector.lost(late):
        return False
      time.sleep(timeouts.current().poll_secs)
      now = self._membership.read()
    return False

  def _copy_state(
    self,
    made: group_monitor.Round,
    state: membership_table_lib.State,
    secs: float,
  ) -> bool:
    """Copies the most advanced state; returns whether all chose the same."""
    entries = state.entries
    source = max(made.elastic_group, key=lambda i: (entries[i].place, -i))
    votes = np.zeros([len(self._peers)], np.int32)
    votes[source] = 1
    made.place = group_monitor.NOWHERE
    with self._monitor.during(made, secs):
      if made.collective.sum(votes)[source] != len(made.elastic_group):
        return False
      self._check(state, source)
      packed = self._local_state.packed()
      given = packed if source == self._own else np.zeros_like(packed)
      whole = made.collective.sum(given)
    if source != self._own:
      self._local_state.unpack(whole)
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
      "trained already. Do both run the same program? Create an optimizer's "
      'slots in the scope: optimizer.build(model.trainable_variables).'
    )
