"""Who adds up gradients with whom, as all of them find it on a ps.

Workers that add them up are a *crew*. It stays as it is for a round. Who wants
another one, because somebody is lost, is done or has come, enters for the next
round; once all have entered who are expected, somebody closes it.
"""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfps.updates import apply
from tfps.updates import ps_lock

LEFT = -1  # the round of who is done
NEW = -1  # the place of who has nothing that others had

_ROUND, _HAS_BEGUN, _NUM_FACTS = range(3)


class Entry(NamedTuple):
  """What a worker tells of itself.

  Attributes:
    round: for which it has entered, or LEFT.
    port: where it is to be found.
    place: how many arrays it had added up with others when it entered, be they
      gradients or not, or NEW.
    stint: how often it has begun again since the round was closed, after it was
      done.
    ready: the last round for which its server was there.
    incarnation: tells it from others that have been this worker.
    digest: tells what it holds.
  """

  round: int
  port: int
  place: int
  stint: int
  ready: int
  incarnation: int
  digest: int


@dataclasses.dataclass(frozen=True)
class State:
  """What is on the ps.

  Attributes:
    round: the last that was closed; 0 if none was.
    has_begun: whether any crew has trained.
    elastic_group: of that round, by their numbers.
    entries: of all workers.
  """

  round: int
  has_begun: bool
  elastic_group: tuple[int, ...]
  entries: Sequence[Entry]

  def entered(self, round: int) -> list[int]:
    """Who has entered for a round."""
    return [i for i, entry in enumerate(self.entries) if entry.round == round]

  def has_left(self, worker: int) -> bool:
    """Whether a worker is done."""
    return self.entries[worker].round == LEFT


class MembershipTable:
  """The variables, each on the first ps.

  To be made by all workers, who share it by name.

  Args:
    make: makes a variable; gets a ps, a name and a value.
    num_workers: how many workers there are.
  """

  def __init__(self, make: Callable[..., Any], num_workers: int) -> None:
    zeros = np.zeros([num_workers, len(Entry._fields)], np.int64)
    self._entries = make(0, 'tfps/crew/entries', tf.constant(zeros))
    facts = tf.zeros([_NUM_FACTS + num_workers], tf.int64)
    self._closed = make(0, 'tfps/crew/closed', facts)
    close = tf.function(self._traced_close, autograph=False)
    self._close = close.get_concrete_function(tf.TensorSpec([], tf.int64))

  def read(self) -> State:
    """What is there now.

    Raises:
      tf.errors.OpError: the ps is lost.
    """
    closed = self._closed.numpy().tolist()
    members = closed[_NUM_FACTS:]
    return State(
      closed[_ROUND],
      bool(closed[_HAS_BEGUN]),
      tuple(i for i, member in enumerate(members) if member),
      tuple(Entry(*row) for row in self._entries.numpy().tolist()),
    )

  def enter(self, worker: int, entry: Entry) -> None:
    """Writes a worker's entry.

    Raises:
      tf.errors.OpError: the ps is lost.
    """
    row = tf.constant([entry], tf.int64)
    self._entries.scatter_update(tf.IndexedSlices(row, [worker]))

  def close(self, round: int) -> None:
    """Makes those a crew who have entered for a round, unless it is closed.

    Raises:
      tf.errors.OpError: the ps is lost.
    """
    self._close(tf.constant(round, tf.int64))

  def note_begun(self) -> None:
    """Says that a crew trains.

    Raises:
      tf.errors.OpError: the ps is lost.
    """
    self._closed.scatter_nd_update([[_HAS_BEGUN]], tf.constant([1], tf.int64))

  def _traced_close(self, round: tf.Tensor) -> None:
    def job(round: tf.Tensor) -> Sequence[Any]:
      closed = apply.read(self._closed)
      entered = tf.equal(apply.read(self._entries)[:, 0], round)
      facts = [[round], closed[_HAS_BEGUN : _HAS_BEGUN + 1]]
      new = tf.concat([*facts, tf.cast(entered, tf.int64)], axis=0)
      is_open = closed[_ROUND] < round
      return [apply.write(self._closed, tf.where(is_open, new, closed))]

    ps_lock.run([ps_lock.Job(self._closed, job, [round])])
