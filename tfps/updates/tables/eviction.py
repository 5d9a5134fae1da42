"""Eviction: which keys of a table lose their rows.

Keys are evicted on their ps, under its lock, by look-ups in training. One
examines a bounded number of rows, from where the last one stopped.

Each row has a score, which look-ups raise.
"""

from collections.abc import Sequence
import dataclasses
from typing import Any

import tensorflow as tf

from tfps.updates.tables import counts as counts_lib
from tfps.updates.tables import policy
from tfps.updates.tables import resources
from tfps.updates.tables import shard as shard_lib
from tfps.updates.tables import weights

_Count = counts_lib.Count

# A look-up examines so many rows, or so many times those it has asked for.
_WINDOW = 1 << 16
_WINDOW_PER_ROW = 16
# More keys than needed are evicted at a time: one of so many in a window.
_SPARE_PART = 32
# So many of the keys in a window may be evicted, however few it has.
_ALWAYS_PART = 4
# Expired keys are looked for so often during the time that they live.
_SWEEPS = 8

_MICROS = 1_000_000
_ONE_USE = 1 << 32
_NEVER: int = tf.int64.max


class Eviction(policy.Policy):
  """Base class of policies that decide which keys lose their rows."""

  def weights(self, num_shards: int) -> Sequence[weights.Weight]:
    """Returns the variables that each shard needs for the policy."""
    del num_shards
    return [weights.Weight('scores')]

  def note_lookup(self, counts: Any) -> Any:
    """Notes that a look-up begins; returns the operation, if it needs one.

    Args:
      counts: variable of the shard's counts.
    """
    del counts

  def note_use(
    self, scores: Any, rows: tf.Tensor, held: Sequence[tf.Tensor]
  ) -> Any:
    """Raises the scores of rows that are looked up; returns the operation.

    Args:
      scores: variable of the rows' scores.
      rows: numbers of the rows.
      held: the shard's counts.
    """
    now = self.first_scores(tf.size(rows), held)
    return resources.scatter(scores, rows, now)

  def first_scores(
    self, number: tf.Tensor, held: Sequence[tf.Tensor]
  ) -> tf.Tensor:
    """Returns the scores of keys that have just got a row.

    Args:
      number: how many.
      held: the shard's counts.
    """
    return tf.fill([number], _now())

  def is_due(self, held: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns whether rows are to be examined, given the shard's counts."""
    raise NotImplementedError

  def choose(
    self, scores: tf.Tensor, held: Sequence[tf.Tensor]
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Chooses keys to evict.

    Args:
      scores: those of the rows that are examined; the highest possible for
        those that stay.
      held: the shard's counts.

    Returns:
      Their positions among the scores, and when to examine rows again.
    """
    raise NotImplementedError

  def evict(self, shard: shard_lib.Shard, used: tf.Tensor) -> tf.Tensor:
    """Evicts some of a shard's keys if it is due, within a `ps_lock.Job`.

    Args:
      shard: the shard.
      used: numbers of rows that are looked up just now, which stay.

    Returns:
      A tensor, after which it has.
    """
    held = counts_lib.read(shard.counts)
    return tf.cond(
      self.is_due(held),
      lambda: self._evict(shard, used, held),
      lambda: tf.constant(False),
    )

  def _evict(
    self, shard: shard_lib.Shard, used: tf.Tensor, held: Sequence[tf.Tensor]
  ) -> tf.Tensor:
    size = held[_Count.USED] - counts_lib.NUM_INITIAL
    most = tf.maximum(_WINDOW_PER_ROW * tf.size(used, tf.int64), _WINDOW)
    window, hand = tf.minimum(size, most), held[_Count.HAND]
    first = hand % tf.maximum(size, 1)
    rows = (first + tf.range(window)) % tf.maximum(size, 1)
    scores = _scores_of(shard, rows + counts_lib.NUM_INITIAL)
    places = (used - counts_lib.NUM_INITIAL - first) % tf.maximum(size, 1)
    places = tf.boolean_mask(
      places, (used >= counts_lib.NUM_INITIAL) & (places < window)
    )
    scores = tf.tensor_scatter_nd_update(
      scores, places[:, tf.newaxis], tf.fill([tf.size(places)], _NEVER)
    )
    chosen, again = self.choose(scores, held)
    chosen = tf.boolean_mask(chosen, tf.gather(scores, chosen) < _NEVER)
    moved = counts_lib.add(
      shard.counts,
      {
        _Count.HAND: first + window - hand,
        _Count.SWEEP_AT: again - held[_Count.SWEEP_AT],
        _Count.EVICTED: tf.size(chosen),
      },
    )
    with resources.after(moved):
      return shard.remove(tf.gather(rows, chosen) + counts_lib.NUM_INITIAL)


@dataclasses.dataclass(frozen=True)
class Ttl(Eviction):
  """Eviction of keys that no step has looked up for some time.

  Keys are looked for while the table is looked up in training; one is evicted
  when an eighth more of the time has passed, at the latest.

  Attributes:
    secs: seconds since the last look-up in training after which a key has
      expired.
    steps: look-ups of the table in training instead of seconds. A step of a
      worker makes one for each feature that it looks up.

  Raises:
    ValueError: neither or both are given, or one is not positive, or the steps
      are not whole.
  """

  secs: float | None = None
  steps: int | None = None

  def __post_init__(self) -> None:
    if (self.secs is None) == (self.steps is None):
      raise ValueError(f'{self}: give either secs or steps.')
    if self.secs is None:
      self._check_whole('steps')
    else:
      self._check_positive('secs')

  def note_lookup(self, counts: Any) -> Any:
    if self.steps is None:
      return None
    return counts_lib.add(counts, {_Count.LOOKUPS: 1})

  def first_scores(
    self, number: tf.Tensor, held: Sequence[tf.Tensor]
  ) -> tf.Tensor:
    return tf.fill([number], self._now(held))

  def is_due(self, held: Sequence[tf.Tensor]) -> tf.Tensor:
    return self._now(held) >= held[_Count.SWEEP_AT]

  def choose(
    self, scores: tf.Tensor, held: Sequence[tf.Tensor]
  ) -> tuple[tf.Tensor, tf.Tensor]:
    now, lifetime = self._now(held), self._lifetime
    size = held[_Count.USED] - counts_lib.NUM_INITIAL
    windows = 1 + size // tf.maximum(tf.size(scores, tf.int64), 1)
    period = tf.maximum(lifetime // _SWEEPS // windows, 1)
    return tf.where(scores <= now - lifetime)[:, 0], now + period

  @property
  def _lifetime(self) -> int:
    if self.secs is not None:
      return int(self.secs * _MICROS)
    assert self.steps is not None
    return self.steps

  def _now(self, held: Sequence[tf.Tensor]) -> tf.Tensor:
    return held[_Count.LOOKUPS] if self.secs is None else _now()


@dataclasses.dataclass(frozen=True)
class _Capacity(Eviction):
  """Eviction of the keys with the lowest scores once there are too many.

  Attributes:
    capacity: number of keys of the table that is not exceeded, but for those of
      a single look-up. Each shard has its part.

  Raises:
    ValueError: the capacity is not whole or not positive.
  """

  capacity: int

  def __post_init__(self) -> None:
    self._check_whole('capacity')

  def is_due(self, held: Sequence[tf.Tensor]) -> tf.Tensor:
    return counts_lib.num_keys(held) > self._share(held)

  def choose(
    self, scores: tf.Tensor, held: Sequence[tf.Tensor]
  ) -> tuple[tf.Tensor, tf.Tensor]:
    share = self._share(held)
    spare = tf.minimum(share, _WINDOW) // _SPARE_PART
    surplus = counts_lib.num_keys(held) - share + spare
    size = held[_Count.USED] - counts_lib.NUM_INITIAL
    window = tf.size(scores, tf.int64)
    # With far too many keys, as after the capacity was lowered, the window
    # keeps its share of the capacity, and others go from the next ones.
    found = tf.math.count_nonzero(scores < _NEVER)
    most = found - (share - spare) * window // size
    most = tf.maximum(most, found // _ALWAYS_PART)
    number = tf.where(window < size, tf.minimum(surplus, most), surplus)
    # Of equal scores, it takes the first.
    lowest = tf.math.top_k(-scores, tf.cast(number, tf.int32), sorted=False)
    return tf.cast(lowest.indices, tf.int64), held[_Count.SWEEP_AT]

  def _share(self, held: Sequence[tf.Tensor]) -> tf.Tensor:
    return -(-self.capacity // held[_Count.NUM_SHARDS])


@dataclasses.dataclass(frozen=True)
class Lru(_Capacity):
  """Eviction of the keys that were looked up the longest time ago.

  If a ps has more than 65,536 rows of the table, those of so many are evicted
  at a time, of which the next ones are examined next (as a clock's hand goes
  round), not those of all. So if a table is restored with a lower capacity,
  look-ups evict what is too much part by part.

  Attributes:
    capacity: how many keys the table has at most, beside those of the look-up
      that adds some. Each ps has its part of it.

  Raises:
    ValueError: the capacity is not whole or not positive.
  """


@dataclasses.dataclass(frozen=True)
class Lfu(_Capacity):
  """Eviction of the keys that were looked up least often.

  Of those looked up equally often, the one that got its row first is evicted.
  Rows are examined as for `Lru`.

  Attributes:
    capacity: as for `Lru`.

  Raises:
    ValueError: the capacity is not whole or not positive.
  """

  def note_use(
    self, scores: Any, rows: tf.Tensor, held: Sequence[tf.Tensor]
  ) -> Any:
    del held
    return tf.raw_ops.ResourceScatterAdd(
      resource=scores.handle,
      indices=rows,
      updates=tf.fill([tf.size(rows)], tf.constant(_ONE_USE, tf.int64)),
    )

  def first_scores(
    self, number: tf.Tensor, held: Sequence[tf.Tensor]
  ) -> tf.Tensor:
    del held
    return tf.fill([number], _now() // _MICROS)


def _scores_of(shard: shard_lib.Shard, rows: tf.Tensor) -> tf.Tensor:
  """Returns the scores of rows; the highest possible if they have no key."""
  assert shard.addresses is not None
  scores = shard.gather('scores', rows)
  none = tf.constant(_NEVER, tf.int64)
  return tf.where(shard.addresses.are_used(rows), scores, none)


def _now() -> tf.Tensor:
  """Returns the time in microseconds since 1970, on the current device."""
  return tf.cast(tf.timestamp() * _MICROS, tf.int64)
