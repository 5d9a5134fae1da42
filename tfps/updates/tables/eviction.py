"""Eviction: which keys of a table lose their rows.

Keys are evicted on their ps, under its lock, by look-ups in training. One
examines a bounded number of rows, from where the last one stopped.

Each row has a score, which look-ups raise. The scores of initial rows, which
belong to no key, are the number of the unit of all others: by it, scores that
were saved under another policy are found, and replaced.
"""

from collections.abc import Sequence
import dataclasses
import enum
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

# Initial row whose score is read as the unit. The first one is scored by
# look-ups of keys that have no row.
UNIT_ROW = 1


class Unit(enum.IntEnum):
  """Unit of scores.

  Attributes:
    LOOKUPS: look-ups of the shard before the last one of the key.
    USES: look-ups of the key, times 2^32, plus the second of its first one.
    MICROS: microseconds from 1970 to the last look-up of the key.
  """

  LOOKUPS = 1
  USES = 2
  MICROS = 3


class Eviction(policy.Policy):
  """Base class of policies that decide which keys lose their rows."""

  def weights(self, num_shards: int) -> Sequence[weights.Weight]:
    """Returns the variables that each shard needs for the policy."""
    del num_shards
    return [weights.Weight('scores', self.unit)]

  @property
  def unit(self) -> Unit:
    """The unit of scores."""
    return Unit.MICROS

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

  def adopted(
    self, scores: Any, unit: Any, held: Sequence[tf.Tensor]
  ) -> tf.Tensor:
    """Returns scores that were saved, or first ones if their unit is another.

    Args:
      scores: the scores.
      unit: number of their unit; 0 if it was not saved.
      held: the shard's counts.
    """
    unit = tf.where(unit > 0, unit, _unit_of(scores))
    first = self.first_scores(tf.size(scores), held)
    return tf.where(tf.equal(unit, self.unit), scores, first)

  def renew_scores(self, shard: shard_lib.Shard) -> tf.Tensor:
    """Gives all keys first scores if theirs are of another unit.

    They are if variables were restored from a table with another policy. It
    runs within a `ps_lock.Job`.

    Args:
      shard: the shard.

    Returns:
      A tensor, after which it has.
    """
    (unit,) = tf.unstack(shard.gather('scores', [UNIT_ROW]))
    return tf.cond(
      tf.equal(unit, self.unit),
      lambda: tf.constant(False),
      lambda: self._renew_scores(shard, unit),
    )

  def _renew_scores(self, shard: shard_lib.Shard, unit: tf.Tensor) -> tf.Tensor:
    held = counts_lib.read(shard.counts)
    rows = tf.range(counts_lib.NUM_INITIAL, held[_Count.USED])
    new = self.adopted(_scores_of(shard, rows), unit, held)
    initial = tf.range(counts_lib.NUM_INITIAL, dtype=tf.int64)
    units = tf.fill([counts_lib.NUM_INITIAL], tf.constant(self.unit, tf.int64))
    rows = tf.concat([initial, rows], axis=0)
    new = tf.concat([units, new], axis=0)
    written = resources.scatter(shard.values['scores'], rows, new)
    with resources.after_both(written):
      return tf.constant(True)

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

  @property
  def unit(self) -> Unit:
    return Unit.MICROS if self.steps is None else Unit.LOOKUPS

  def note_lookup(self, counts: Any) -> Any:
    if self.steps is None:
      return None
    return counts_lib.add(counts, {_Count.LOOKUPS: 1})

  def first_scores(
    self, number: tf.Tensor, held: Sequence[tf.Tensor]
  ) -> tf.Tensor:
    return tf.fill([number], self._now(held))

  def is_due(self, held: Sequence[tf.Tensor]) -> tf.Tensor:
    wait = held[_Count.SWEEP_AT] - self._now(held)
    # It is longer if it was saved under a policy of another time or unit.
    return (wait <= 0) | (wait > self._lifetime)

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

  @property
  def unit(self) -> Unit:
    return Unit.USES

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


def _unit_of(scores: tf.Tensor) -> tf.Tensor:
  """Returns the unit of scores that were saved without one, by the lowest."""
  # A second of 1970 to 2004 and a microsecond of 1970 to 2005.
  limits = tf.constant([1 << 30, 1 << 50], tf.int64)
  return 1 + tf.math.count_nonzero(tf.reduce_min(scores) >= limits)


def _now() -> tf.Tensor:
  """Returns the time in microseconds since 1970, on the current device."""
  return tf.cast(tf.timestamp() * _MICROS, tf.int64)
