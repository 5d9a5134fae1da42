"""Table on a ps of the workers of an elastic group; see `rendezvous`."""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfps.updates import apply
from tfps.updates import ps_lock

LEFT = -1  # round of a worker that is done
NEW = -1  # place of a worker without state of the group

_ROUND, _HAS_BEGUN, _NUM_FACTS = range(3)

# Error of who begins with a table of a group without a worker that lives.
GONE = (
  'HybridStrategy: the ps have variables of workers that are gone, and the '
  'variables that each of these had for itself are lost. Restart the ps, too, '
  'and give a Recovery an empty directory; training continues from its '
  'checkpoint.'
)


class Entry(NamedTuple):
  """Entry of a worker.

  Attributes:
    round: round for which it has entered, or LEFT.
    port: port of its server for collectives.
    place: number of arrays that it had added up with others when it entered,
      gradients or not, or NEW.
    num_resumed: how often it has resumed in this round after it was done.
    ready: last round for which its server was started.
    incarnation: distinguishes it from earlier processes of the same task.
    digest: hash of its local variables; see `LocalState.digest`.
  """

  round: int
  port: int
  place: int
  num_resumed: int
  ready: int
  incarnation: int
  digest: int


@dataclasses.dataclass(frozen=True)
class State:
  """Content of the table.

  Attributes:
    round: number of the last closed round, or of none if no worker was in it.
    has_begun: whether any group has trained.
    elastic_group: numbers of that round's workers; empty before the first, and
      after the table's ps was lost.
    entries: entries of all workers.
  """

  round: int
  has_begun: bool
  elastic_group: tuple[int, ...]
  entries: Sequence[Entry]

  def entered(self, round: int) -> list[int]:
    """Returns the workers that have entered for a round."""
    return [i for i, entry in enumerate(self.entries) if entry.round == round]

  def has_left(self, worker: int) -> bool:
    """Returns whether a worker is done."""
    return self.entries[worker].round == LEFT


class MembershipTable:
  """Table in variables on the first ps, which all workers share by name.

  It is not saved: values of before would have numbers of rounds that others
  have used since. When its ps was lost, the chief makes it anew.

  Args:
    make: makes a variable of a ps index, a name and a value.
    num_workers: number of workers.
    first: returns a number below that of the next round, and not below those
      of earlier rounds.
    has_begun: whether workers have trained with the ps' variables.
    check_ps: called before the table is read; raises an error if any ps is
      lost, for which others may be waiting.
  """

  def __init__(
    self,
    make: Callable[..., Any],
    num_workers: int,
    *,
    first: Callable[[], int] = lambda: 0,
    has_begun: bool = False,
    check_ps: Callable[[], object] = lambda: None,
  ) -> None:
    self._num_workers = num_workers
    self._first = first
    self._check_ps = check_ps
    entries, facts = self._new(has_begun=has_begun)
    self._entries = make(0, 'tfps/elastic_group/entries', entries)
    self._closed = make(0, 'tfps/elastic_group/closed', facts)
    close = tf.function(self._traced_close, autograph=False)
    self._close = close.get_concrete_function(tf.TensorSpec([], tf.int64))

  def read(self) -> State:
    """Returns the content of the table.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    self._check_ps()
    closed = self._closed.numpy().tolist()
    rows = self._entries.numpy().tolist()
    if not closed or not rows:  # TensorFlow reads memory without a value
      raise tf.errors.UnavailableError(
        None, None, 'The membership table was lost with its ps.'
      )
    members = closed[_NUM_FACTS:]
    return State(
      closed[_ROUND],
      bool(closed[_HAS_BEGUN]),
      tuple(i for i, member in enumerate(members) if member),
      tuple(Entry(*row) for row in rows),
    )

  def renew(self, *, has_begun: bool) -> None:
    """Makes the table anew if its ps has lost it; only the chief calls it.

    Args:
      has_begun: whether workers have trained with the ps' variables.

    Raises:
      tf.errors.OpError: the ps is lost.
    """
    if not self._closed.is_initialized():
      entries, facts = self._new(has_begun=has_begun)
      self._entries.assign(entries)
      self._closed.assign(facts)

  def enter(self, worker: int, entry: Entry) -> None:
    """Writes a worker's entry.

    Raises:
      tf.errors.OpError: the ps is lost.
    """
    row = tf.constant([entry], tf.int64)
    self._entries.scatter_update(tf.IndexedSlices(row, [worker]))

  def close(self, round: int) -> None:
    """Closes a round with the workers that have entered; idempotent.

    Raises:
      tf.errors.OpError: the ps is lost.
    """
    self._close(tf.constant(round, tf.int64))

  def note_begun(self) -> None:
    """Notes that a group trains.

    Raises:
      tf.errors.OpError: the ps is lost.
    """
    self._closed.scatter_nd_update([[_HAS_BEGUN]], tf.constant([1], tf.int64))

  def _new(self, *, has_begun: bool) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the values of a table without entries and rounds."""
    entries = np.zeros([self._num_workers, len(Entry._fields)], np.int64)
    facts = np.zeros([_NUM_FACTS + self._num_workers], np.int64)
    facts[_ROUND], facts[_HAS_BEGUN] = self._first(), has_begun
    return tf.constant(entries), tf.constant(facts)

  def _traced_close(self, round: tf.Tensor) -> None:
    def job(round: tf.Tensor) -> Sequence[Any]:
      closed = apply.read(self._closed)
      entered = tf.equal(apply.read(self._entries)[:, 0], round)
      facts = [[round], closed[_HAS_BEGUN : _HAS_BEGUN + 1]]
      new = tf.concat([*facts, tf.cast(entered, tf.int64)], axis=0)
      is_open = closed[_ROUND] < round
      return [apply.write(self._closed, tf.where(is_open, new, closed))]

    ps_lock.run([ps_lock.Job(self._closed, job, [round])])
