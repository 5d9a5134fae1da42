"""Workers that add up gradients, and go on without who is lost or done.

What a crew's workers have of their own is alike after each array that they have
added up. When somebody is lost, the others meet on the roster, make a ring of
those who are left, and all take over what that one has who has come farthest.
In the same way who comes back, or begins, gets what the others have.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
import dataclasses
import time

from absl import logging
import numpy as np
import tensorflow as tf

from tfps import _deadline
from tfps import _ports
from tfps import cluster as cluster_lib
from tfps import errors
from tfps import probe
from tfps.replication import crew_watch
from tfps.replication import holdings as holdings_lib
from tfps.replication import rings
from tfps.replication import roster as roster_lib

_POLL_SECS = 0.05

# With what executions end whose connection was broken.
_CUT_OFF = (
  tf.errors.AbortedError,
  tf.errors.CancelledError,
  tf.errors.UnavailableError,
)

_START = 'Start all tasks again; training goes on from its checkpoint.'


@dataclasses.dataclass(frozen=True)
class Meetings:
  """What is to be done where gradients of what is on the ps meet.

  Attributes:
    restart: drops gradients that have come; nobody executes anything by then.
    take_in: has all wait for a worker.
    leave_out: has nobody wait for a worker until it executes something.
  """

  restart: Callable[[], object]
  take_in: Callable[[int], object]
  leave_out: Callable[[int], object]


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


class Crew:
  """The crew that this worker is in, or is to be in.

  Args:
    peers: all workers.
    own: the number of this one.
    roster: where they meet.
    holdings: what each has of its own.
    meetings: of the gradients for the ps.
    waits: how long to wait for others.
    tell: gets what has become of others, 'lost' or 'back', and who it is.
  """

  def __init__(
    self,
    peers: Sequence[crew_watch.Peer],
    own: int,
    roster: roster_lib.Roster,
    holdings: holdings_lib.Holdings,
    meetings: Meetings,
    *,
    waits: Waits,
    tell: Callable[[str, Sequence[str]], object],
  ) -> None:
    self._peers = peers
    self._own = own
    self._roster = roster
    self._holdings = holdings
    self._meetings = meetings
    self._waits = waits
    self._tell = tell
    status = probe.probe(peers[own].task, peers[own].address)
    self._incarnation = crew_watch.incarnation(status)
    self._place = roster_lib.NEW
    self._round: crew_watch.Round | None = None
    self._watch = crew_watch.Watch(
      peers,
      own,
      roster,
      silence_secs=waits.silence_secs,
      leave_out=meetings.leave_out,
    )
    self._has_left = False
    self._is_broken = False
    self._is_to_meet = True
    self._is_asked_for = False

  @property
  def task(self) -> cluster_lib.Task:
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

  def begin_mean(self, vector: np.ndarray) -> rings.Sum:
    """Begins to add up gradients of floats, each worker's vector.

    With it goes whether somebody asks for another crew, so that all leave this
    one after the same steps.

    Raises:
      tf.errors.OpError: there is no crew.
    """
    if self._round is None:
      raise tf.errors.FailedPreconditionError(None, None, 'There is no crew.')
    asks = np.full([1], self._watch.somebody_asks, vector.dtype)
    return self._round.ring.begin_mean(np.concatenate([vector, asks]))

  def end_mean(self, begun: rings.Sum) -> np.ndarray:
    """The mean of the vectors of all.

    Raises:
      tf.errors.OpError: somebody is lost or done, and a crew has to be made.
    """
    try:
      mean = begun.result()
    except tf.errors.OpError:
      self._is_broken = self._is_to_meet = True
      raise
    if self._round is not None:
      self._place += 1
      self._round.place = self._place
    self._is_asked_for |= bool(mean[-1] > 0)
    return mean[:-1]

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
    if self._watch.has_waited_too_long:
      others = set(range(len(self._peers))) - {self._own}
      raise errors.DeadlineError(
        f'{self.task} and {self._names(others)} have not come to the same step '
        f'within {self._waits.step_secs:g} seconds of each other. They are '
        f'alive: do they do something else that takes longer? {_START}'
      )
    return True

  def _is_cut_off(self, error: tf.errors.OpError) -> bool:
    """Whether this worker has failed for itself, as once it was frozen.

    It may have made one update by half, and others may lack the one before: it
    says of itself that it has less than any of them.
    """
    if self._round is None or not isinstance(error, _CUT_OFF):
      return False
    self._is_to_meet = True
    self._place = max(self._place - 2, 0)
    return True

  def leave(self) -> None:
    """Says that this worker is done, so that nobody waits for it.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    if self._round is not None and not self._has_left:
      self._watch.stop()  # its ring goes on with what others have not got yet
      self._has_left = True
      self._enter(roster_lib.LEFT, self._round)

  def _come_again(self) -> bool:
    """Goes on with the same crew, if all of it come again."""
    made = self._round
    if made is None or self._is_to_meet:
      return False
    made.stint += 1
    self._enter(made.number, made)
    deadline = _deadline.after(self._waits.step_secs)
    silence = crew_watch.Silence(self._peers, self._waits.silence_secs)
    state = self._roster.read()
    while late := {
      i: state.entries[i]
      for i in made.crew
      if not made.is_along(state.entries[i])
    }:
      if state.round != made.number or state.entered(made.number + 1):
        return False
      if silence.lost(late):
        return False
      if _deadline.is_over(deadline):
        raise self._not_come(late, self._waits.step_secs)
      time.sleep(_POLL_SECS)
      state = self._roster.read()
    return self._begin(made, state)

  def _meet(self) -> None:
    self._watch.stop()
    before, self._round = self._round, None
    if before is not None:
      before.ring.break_off()
      # Others may wait for its gradient, which does not come.
      self._meetings.leave_out(self._own)
    is_first = self._place == roster_lib.NEW
    secs = self._waits.connect_secs if is_first else self._waits.step_secs
    deadline = _deadline.after(secs)
    while True:
      state = self._close_round(deadline, secs)
      made = self._make(state)
      if made is None:
        continue
      if self._are_ready(state) and self._begin(made, state):
        break
      made.ring.break_off()
    self._say(before, made, state)
    self._round = made
    self._is_to_meet = self._is_broken = False

  def _begin(self, made: crew_watch.Round, state: roster_lib.State) -> bool:
    """Has all begin with the same; whether they do, or somebody was lost."""
    if made.ring.index == 0:
      for i in made.crew:  # else updates would be made of who is first
        self._meetings.take_in(i)
    try:
      if not self._share(made, state):
        return False
    except tf.errors.OpError as error:
      self._roster.read()  # raises if a ps is the cause
      logging.warning('%s', errors.first_line(error))
      return False
    self._is_asked_for = False
    self._watch.begin(made, self._waits.step_secs)
    return True

  def _enter(
    self,
    round: int,
    made: crew_watch.Round | None = None,
    *,
    port: int = 0,
  ) -> None:
    entry = roster_lib.Entry(
      round=round,
      port=port,
      place=self._place,
      stint=made.stint if made else 0,
      ready=made.number if made else 0,
      incarnation=self._incarnation,
      digest=self._holdings.digest(),
    )
    self._roster.enter(self._own, entry)

  def _close_round(
    self, deadline: float | None, secs: float
  ) -> roster_lib.State:
    """Enters for the next round; what is there once it is closed with this."""
    state = self._roster.read()
    silence = crew_watch.Silence(self._peers, self._waits.silence_secs)
    round = 0
    while state.round < round or self._own not in state.crew or not round:
      if state.round >= round:
        round = state.round + 1
        self._enter(round, port=_ports.pick())
      missing = self._missing(state, round, silence)
      if not missing:
        self._roster.close(round)
      elif _deadline.is_over(deadline):
        raise self._not_come(missing, secs)
      else:
        time.sleep(_POLL_SECS)
      state = self._roster.read()
    return state

  def _missing(
    self, state: roster_lib.State, round: int, silence: crew_watch.Silence
  ) -> set[int]:
    """Who is expected and has not entered."""
    late = set(self._expected(state)) - set(state.entered(round))
    if state.round:
      entries = {i: state.entries[i] for i in late - {self._own}}
      for lost in silence.lost(entries):
        self._meetings.leave_out(lost)
        late.discard(lost)
    return late

  def _not_come(self, late: Iterable[int], secs: float) -> errors.DeadlineError:
    return errors.DeadlineError(
      f'After {secs:g} seconds, {self.task} still waits for '
      f'{self._names(late)} to add up gradients with. Do all workers run the '
      f'same program?'
    )

  def _names(self, workers: Iterable[int]) -> str:
    return ', '.join(str(self._peers[i].task) for i in sorted(workers))

  def _expected(self, state: roster_lib.State) -> Sequence[int]:
    """All at first; then who was there and is not done, or all once all are."""
    if not state.round:
      return range(len(self._peers))
    going_on = [i for i in state.crew if not state.has_left(i)]
    return going_on or state.crew

  def _make(self, state: roster_lib.State) -> crew_watch.Round | None:
    """The round, with a ring that others may not be at yet.

    Returns:
      None if the port is taken by now.
    """
    crew = state.crew
    places = [state.entries[i].place for i in crew]
    if state.has_begun and max(places) == roster_lib.NEW:
      raise ValueError(
        'HybridStrategy: the ps have variables of workers that are gone, and '
        'with these went what each worker had of its own. Start the ps anew, '
        'too; training goes on from its checkpoint.'
      )
    hosts = [self._peers[i].address.rpartition(':')[0] for i in crew]
    ports = [state.entries[i].port for i in crew]
    try:
      ring = rings.Ring(
        [f'{host}:{port}' for host, port in zip(hosts, ports, strict=True)],
        crew.index(self._own),
      )
    except tf.errors.OpError as error:
      logging.warning('Another port: %s', errors.first_line(error))
      return None
    if ring.index == 0:
      self._meetings.restart()
      for i in set(range(len(self._peers))) - set(crew):
        self._meetings.leave_out(i)
    made = crew_watch.Round(state.round, crew, ring)
    self._enter(state.round, made, port=ports[ring.index])
    return made

  def _are_ready(self, state: roster_lib.State) -> bool:
    """Waits for the servers of all; whether they are there."""
    silence = crew_watch.Silence(self._peers, self._waits.silence_secs)
    now = state
    while now.round == state.round:
      late = {
        i: now.entries[i]
        for i in state.crew
        if now.entries[i].ready < state.round
      }
      if not late:
        return True
      if any(entry.round != state.round for entry in late.values()):
        return False
      if silence.lost(late):
        return False
      time.sleep(_POLL_SECS)
      now = self._roster.read()
    return False

  def _share(self, made: crew_watch.Round, state: roster_lib.State) -> bool:
    """Has all take over what one has; whether all agree on whom."""
    entries = state.entries
    source = max(made.crew, key=lambda i: (entries[i].place, -i))
    votes = np.zeros([len(self._peers)], np.int32)
    votes[source] = 1
    made.place = crew_watch.NOWHERE
    with self._watch.during(made, self._waits.step_secs):
      if made.ring.sum_of(votes)[source] != len(made.crew):
        return False
      self._check(state, source)
      packed = self._holdings.packed()
      given = packed if source == self._own else np.zeros_like(packed)
      whole = made.ring.sum_of(given)
    if source != self._own:
      self._holdings.unpack(whole)
    self._place = made.place = max(entries[source].place, 0)
    self._roster.note_begun()
    return True

  def _check(self, state: roster_lib.State, source: int) -> None:
    own, other = state.entries[self._own], state.entries[source]
    if own.digest != other.digest:
      self._enter(roster_lib.LEFT)
      raise ValueError(
        f'HybridStrategy: {self.task} has other variables than '
        f'{self._peers[source].task}, which has trained already. Do both run '
        "the same program? An optimizer's slots are to be made in the scope: "
        'optimizer.build(model.trainable_variables).'
      )

  def _say(
    self,
    before: crew_watch.Round | None,
    made: crew_watch.Round,
    state: roster_lib.State,
  ) -> None:
    crew = set(made.crew)
    others = self._names(crew - {self._own}) or 'nobody'
    logging.info('%s adds up gradients with %s.', self.task, others)
    if before is None:
      return
    gone = set(before.crew) - crew
    lost = [i for i in gone if not state.has_left(i)]
    fresh = roster_lib.NEW
    back = [i for i in made.crew if state.entries[i].place == fresh]
    for kind, who in (('lost', lost), ('back', back)):
      if who:
        self._tell(kind, [str(self._peers[i].task) for i in sorted(who)])
