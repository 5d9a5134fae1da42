"""Aborts collectives for which a worker of the group does not come.

TensorFlow's collectives wait for ever for a process that is dead, frozen or
done. The membership table and probes of the workers' servers tell of these.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import dataclasses
import threading
import time
from typing import Protocol

from absl import logging
import tensorflow as tf

from tfps import errors
from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib
from tfps.server import connection
from tfps.server import health
from tfps.server import task_registry
from tfps.updates.allreduce import collectives
from tfps.updates.allreduce import membership_table as membership_table_lib

_INCARNATION_BITS = 62  # which an int64 holds

UNKNOWN = 0  # incarnation in an entry that was not made yet

# Place of a worker without any yet: it follows whatever others do.
NOWHERE = 1 << 62


@dataclasses.dataclass(frozen=True)
class Waits:
  """Timeouts of a group of workers.

  Attributes:
    connect_secs: seconds until all workers have begun.
    step_secs: seconds to wait in a step for workers that are alive.
    silence_secs: seconds for which a worker may not answer.
  """

  connect_secs: float
  step_secs: float
  silence_secs: float

  @classmethod
  def of(
    cls,
    connect_secs: float,
    step_secs: float,
    silence_secs: float | None = None,
  ) -> 'Waits':
    """Returns them with a default number of seconds of silence.

    Args:
      connect_secs: as the attribute, like the others.
      step_secs: seconds to wait in a step.
      silence_secs: None for the default, or what a step waits if that is less.
    """
    longest = min(timeouts.current().silence_secs, step_secs)
    return cls(connect_secs, step_secs, silence_secs or longest)


@dataclasses.dataclass(frozen=True)
class Peer:
  """Worker that may take part.

  Attributes:
    task: its task.
    address: address of its server in the cluster.
  """

  task: spec_lib.Task
  address: str


def names(peers: Sequence[Peer], workers: Iterable[int]) -> str:
  """Returns the names of workers, for messages."""
  return ', '.join(str(peers[i].task) for i in sorted(workers))


def incarnation(status: health.Status) -> int:
  """Returns the incarnation in a probe's result, as entries store it."""
  return (status.incarnation or 0) % (1 << _INCARNATION_BITS)


@dataclasses.dataclass
class Round:
  """Round of an elastic group: the time from one rendezvous to the next.

  Attributes:
    number: number of the round.
    elastic_group: numbers of its workers.
    collective: collective group of these workers.
    place: number of arrays that this worker has added up, or NOWHERE.
    num_resumed: how often this worker resumed after it was done.
    is_included: whether updates on the ps wait for this worker.
    num_awaited: number of steps that others may do while this one waits.
  """

  number: int
  elastic_group: tuple[int, ...]
  collective: collectives.CollectiveGroup
  place: int = NOWHERE
  num_resumed: int = 0
  is_included: bool = True
  num_awaited: int = 1

  def is_in_step(self, entry: membership_table_lib.Entry) -> bool:
    """Returns whether another worker does the same steps, by its entry."""
    return (entry.round, entry.num_resumed) == (self.number, self.num_resumed)


class Living(Protocol):
  """Entry of a worker that says which process made it."""

  @property
  def incarnation(self) -> int:
    """The number that its server has drawn at its start, or UNKNOWN."""


class LossDetector:
  """Probes workers and finds those dead, restarted, or silent for too long.

  Args:
    peers: all workers.
    silence_secs: seconds for which a worker may not answer.
  """

  def __init__(self, peers: Sequence[Peer], silence_secs: float) -> None:
    self._peers = peers
    self._silence_secs = silence_secs
    self._registry: task_registry.TaskRegistry[int]
    self._registry = task_registry.TaskRegistry()
    self._looked_at = -1e9
    self._found: set[int] = set()

  def lost(self, entries: Mapping[int, Living]) -> set[int]:
    """Returns lost workers, as of the last probe; it probes if that is old.

    Args:
      entries: entries of the workers in question, by number.
    """
    now = time.monotonic()
    if entries and now > self._looked_at + timeouts.current().listen_every_secs:
      self._looked_at = now
      addresses = {self._peers[i].task: self._peers[i].address for i in entries}
      statuses = health.probe_all(addresses)
      found = dict(zip(entries, statuses, strict=True))
      self._found -= set(entries)
      self._found |= self._changed(found, entries)
    return self._found & set(entries)

  def _changed(
    self, statuses: Mapping[int, health.Status], entries: Mapping[int, Living]
  ) -> set[int]:
    answers = {
      i: incarnation(status) if status.state is health.State.ALIVE else None
      for i, status in statuses.items()
    }
    # One that has not entered since the table was lost is as it is.
    self._registry.accept(
      {
        i: answers[i] or UNKNOWN if e.incarnation == UNKNOWN else e.incarnation
        for i, e in entries.items()
      }
    )
    dead = {
      i
      for i, status in statuses.items()
      if status.state not in (health.State.ALIVE, health.State.HUNG)
    }
    restarted = self._registry.look(answers)
    return dead | restarted | self._registry.silent(self._silence_secs)


class GroupMonitor:
  """Watches a round from a thread and aborts its collectives.

  Args:
    peers: all workers.
    own: number of this worker.
    membership: membership table on a ps.
    silence_secs: seconds for which a worker may not answer.
    leave_out: excludes a lost worker from updates on the ps.

  Attributes:
    is_change_requested: whether a worker has entered for another round.
    has_timed_out: whether the collectives were aborted although all
      workers are alive and in this round.
  """

  def __init__(
    self,
    peers: Sequence[Peer],
    own: int,
    membership: membership_table_lib.MembershipTable,
    silence_secs: float,
    leave_out: Callable[[int], object],
  ) -> None:
    self.is_change_requested = False
    self.has_timed_out = False
    self._peers = peers
    self._own = own
    self._membership = membership
    self._silence_secs = silence_secs
    self._leave_out = leave_out
    self._stopping = threading.Event()
    self._thread: threading.Thread | None = None
    connection.stop_before_next(self.stop)

  def begin(self, round: Round, step_secs: float) -> None:
    """Begins to watch a round.

    Args:
      round: round whose collectives it may abort.
      step_secs: seconds to wait for workers that are alive.
    """
    self.is_change_requested = self.has_timed_out = False
    self._stopping = threading.Event()
    self._thread = threading.Thread(
      target=self._run,
      args=(round, step_secs, self._stopping),
      name='tfps-group-monitor',
      daemon=True,
    )
    self._thread.start()

  def stop(self) -> None:
    """Stops watching; idempotent."""
    self._stopping.set()
    thread, self._thread = self._thread, None
    if thread is not None:
      thread.join(timeouts.current().thread_stop_secs)

  @contextlib.contextmanager
  def during(self, round: Round, step_secs: float) -> Iterator[None]:
    """Returns a context in which it watches a round; see `begin`."""
    self.begin(round, step_secs)
    try:
      yield
    finally:
      self.stop()

  def reason_to_abort(
    self, round: Round, step_secs: float, detector: LossDetector
  ) -> str:
    """Returns why to abort the collectives now, or ''.

    Args:
      round: the round that is watched.
      step_secs: seconds to wait for workers that are alive.
      detector: finds workers that are lost.

    Raises:
      tf.errors.OpError: the ps with the membership table is lost.
    """
    secs, next_place = round.collective.waiting_secs, round.place + 1
    state = self._membership.read()
    self.is_change_requested = bool(state.entered(round.number + 1))
    if state.round > round.number:
      return 'The other workers closed a round without this one.'
    if secs is None and not round.collective.has_failed:
      return ''
    others = {
      i: state.entries[i] for i in round.elastic_group if i != self._own
    }
    for i, entry in others.items():
      if not round.is_in_step(entry) and entry.place < next_place:
        return f'{self._peers[i].task} has left the group.'
    if secs is not None and secs < timeouts.current().probe_every_secs:
      return ''
    lost = detector.lost(others)
    for i in lost:  # this worker may itself wait for it in an update
      self._leave_out(i)
    if lost:
      return f'{names(self._peers, lost)} is lost.'
    if secs is not None and secs > step_secs * round.num_awaited:
      self.has_timed_out = True
      return f'The other workers have not come for {secs:.0f} seconds.'
    return ''

  def _run(
    self, round: Round, step_secs: float, stopping: threading.Event
  ) -> None:
    detector = LossDetector(self._peers, self._silence_secs)
    while not stopping.wait(timeouts.current().listen_every_secs):
      try:
        reason = self.reason_to_abort(round, step_secs, detector)
      except tf.errors.OpError as error:  # a ps is lost, which recovery handles
        reason = f'Cannot read the membership table: {errors.first_line(error)}'
      if reason:
        logging.warning('%s: %s', self._peers[self._own].task, reason)
        round.collective.abort()
        return
