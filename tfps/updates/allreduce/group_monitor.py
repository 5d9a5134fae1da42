"""Looks after a crew while its workers add up gradients.

Who waits in a ring for somebody that does not come would wait for ever. What
has become of others is on the roster, and a probe of their servers tells.
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

from absl import logging
import tensorflow as tf

from tfps import errors
from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib
from tfps.server import connection
from tfps.server import health
from tfps.updates.allreduce import collectives
from tfps.updates.allreduce import membership_table as membership_table_lib

_INCARNATION_BITS = 62  # which an int64 holds

# The place of who is nowhere yet: whatever others do concerns it.
NOWHERE = 1 << 62


@dataclasses.dataclass(frozen=True)
class Peer:
  """A worker.

  Attributes:
    task: which it is.
    address: where its own server answers.
  """

  task: spec_lib.Task
  address: str


def names(peers: Sequence[Peer], workers: Iterable[int]) -> str:
  """Some of all workers, for people."""
  return ', '.join(str(peers[i].task) for i in sorted(workers))


def incarnation(status: health.Status) -> int:
  """That of a worker which was probed, as its entry has it."""
  return (status.incarnation or 0) % (1 << _INCARNATION_BITS)


@dataclasses.dataclass
class Round:
  """A crew at work.

  Attributes:
    number: of the round.
    elastic_group: the numbers of its workers.
    ring: in which they add up.
    place: how far this worker has come with others, or NOWHERE.
    stint: how often this worker has begun again, after it was done.
    is_in: whether updates on the ps wait for this worker.
    num_awaited: how many steps others may do while this one waits.
  """

  number: int
  elastic_group: tuple[int, ...]
  ring: collectives.CollectiveGroup
  place: int = NOWHERE
  stint: int = 0
  is_in: bool = True
  num_awaited: int = 1

  def is_along(self, entry: membership_table_lib.Entry) -> bool:
    """Whether another worker of the crew does the same steps."""
    return (entry.round, entry.stint) == (self.number, self.stint)


class Silence:
  """Who is lost: dead, started again, or silent for too long.

  Args:
    peers: all workers.
    silence_secs: how long one may not answer.
  """

  def __init__(self, peers: Sequence[Peer], silence_secs: float) -> None:
    self._peers = peers
    self._silence_secs = silence_secs
    self._since: dict[int, float] = {}
    self._looked_at = -1e9
    self._found: set[int] = set()

  def lost(self, entries: Mapping[int, membership_table_lib.Entry]) -> set[int]:
    """Those of some workers, as of a short while ago; by their entries."""
    now = time.monotonic()
    if entries and now > self._looked_at + timeouts.current().listen_every_secs:
      self._looked_at = now
      addresses = {self._peers[i].task: self._peers[i].address for i in entries}
      statuses = health.probe_all(addresses)
      for i, status in zip(entries, statuses, strict=True):
        self._judge(i, status, entries[i])
    return self._found & set(entries)

  def _judge(
    self, worker: int, status: health.Status, entry: membership_table_lib.Entry
  ) -> None:
    if status.state is health.State.HUNG:
      since = self._since.setdefault(worker, time.monotonic())
      is_lost = time.monotonic() > since + self._silence_secs
    else:
      self._since.pop(worker, None)
      is_alive = status.state is health.State.ALIVE
      is_lost = not is_alive or incarnation(status) != entry.incarnation
    (self._found.add if is_lost else self._found.discard)(worker)


class GroupMonitor:
  """Breaks a ring off that somebody does not come to, from a thread.

  Args:
    peers: all workers.
    own: the number of this one.
    membership: tells what has become of others.
    silence_secs: how long one may not answer.
    leave_out: has nobody wait for one that is lost.

  Attributes:
    somebody_asks: whether anybody has entered for another round.
    has_waited_too_long: whether the ring was broken off because of somebody who
      lives and is nowhere else.
  """

  def __init__(
    self,
    peers: Sequence[Peer],
    own: int,
    membership: membership_table_lib.MembershipTable,
    silence_secs: float,
    leave_out: Callable[[int], object],
  ) -> None:
    self.somebody_asks = False
    self.has_waited_too_long = False
    self._peers = peers
    self._own = own
    self._membership = membership
    self._silence_secs = silence_secs
    self._leave_out = leave_out
    self._stopping = threading.Event()
    self._thread: threading.Thread | None = None
    connection.stop_before_next(self.stop)

  def begin(self, round: Round, step_secs: float) -> None:
    """Looks after a round.

    Args:
      round: whose ring it may break off.
      step_secs: how long to wait for who lives.
    """
    self.somebody_asks = self.has_waited_too_long = False
    self._stopping = threading.Event()
    self._thread = threading.Thread(
      target=self._run,
      args=(round, step_secs, self._stopping),
      name='tfps-crew',
      daemon=True,
    )
    self._thread.start()

  def stop(self) -> None:
    """Looks no more; twice is harmless."""
    self._stopping.set()
    thread, self._thread = self._thread, None
    if thread is not None:
      thread.join(timeouts.current().thread_stop_secs)

  @contextlib.contextmanager
  def during(self, round: Round, step_secs: float) -> Iterator[None]:
    """In which it looks after a round; see `begin`."""
    self.begin(round, step_secs)
    try:
      yield
    finally:
      self.stop()

  def _run(
    self, round: Round, step_secs: float, stopping: threading.Event
  ) -> None:
    silence = Silence(self._peers, self._silence_secs)
    while not stopping.wait(timeouts.current().listen_every_secs):
      try:
        reason = self._reason(round, step_secs, silence)
      except tf.errors.OpError as error:  # a ps is lost, which others see to
        logging.warning('Nobody knows who is done: %s', error.message)
        reason = f'The roster is lost: {errors.first_line(error)}'
      if reason:
        logging.warning('%s: %s', self._peers[self._own].task, reason)
        round.ring.break_off()
        return

  def _reason(self, round: Round, step_secs: float, silence: Silence) -> str:
    """Why to break the ring off, if there is any reason."""
    secs, next_place = round.ring.waiting_secs, round.place + 1
    state = self._membership.read()
    self.somebody_asks = bool(state.entered(round.number + 1))
    if state.round > round.number:
      return 'Others have gone on without this one.'
    if secs is None and not round.ring.has_failed:
      return ''
    others = {
      i: state.entries[i] for i in round.elastic_group if i != self._own
    }
    for i, entry in others.items():
      if not round.is_along(entry) and entry.place < next_place:
        return f'{self._peers[i].task} has left the steps of all.'
    if secs is not None and secs < timeouts.current().probe_every_secs:
      return ''
    lost = silence.lost(others)
    for i in lost:  # this one itself may be waiting where gradients meet
      self._leave_out(i)
    if lost:
      return f'{names(self._peers, lost)} is lost.'
    if secs is not None and secs > step_secs * round.num_awaited:
      self.has_waited_too_long = True
      return f'Others have not come for {secs:.0f} seconds.'
    return ''
