"""Rows of a table by the keys that they belong to, on one ps.

A hash table on the ps maps each key to the number of its row. It is only an
index of the keys, which a variable holds beside the rows: snapshots, replicas
and checkpoints need to know nothing but variables. Beside the keys is a digest
of them. If the index has been made for another one, because variables were
restored or the ps was started again, it is made anew from the keys.
"""

from collections.abc import Sequence
import dataclasses
import functools
from typing import Any

import tensorflow as tf

from tfps.updates import apply
from tfps.updates import ps_lock
from tfps.variables import growing

# The first rows belong to no key: they have the values of keys that are new.
NUM_INITIAL = 1024

# Contents of `Shard.counts`.
_USED, _DIGEST, _NUM_SHARDS = range(3)
NUM_COUNTS = 3

_ABSENT = -1
# An odd number near 2^64 over the golden ratio: multiplication by it spreads
# numbers that are near each other (Knuth, "The Art of Computer Programming",
# volume 3, section 6.4).
_SPREADS = -7046029254386353131


@dataclasses.dataclass(frozen=True, eq=False)
class Shard:
  """Part of a table that is on one device: rows and their keys.

  Attributes:
    name: of the index; no other on the device has it.
    rows: variable of shape [number of rows, ...], growing; the first
      `NUM_INITIAL` rows have initial values.
    keys: int64 variable of shape [number of rows], growing: the key of each
      row, from `NUM_INITIAL` on.
    counts: int64 variable of shape [NUM_COUNTS]: how many rows are used, the
      digest of the keys, and how many shards the table has.
    num_shards: how many shards the table has.
  """

  name: str
  rows: Any
  keys: Any
  counts: Any
  num_shards: int

  def locate(self, keys: tf.Tensor, *, inserts: bool) -> tf.Tensor:
    """Returns the numbers of the rows of keys.

    No lock is taken if all keys are known.

    Args:
      keys: different int64 keys of shape [n], on the shard's device, which is
        the current one.
      inserts: whether keys that are not known get rows. If not, the numbers
        of rows with initial values are returned for them.

    Returns:
      int64 tensor of shape [n].
    """
    if tf.executing_eagerly():  # in which no lock is taken
      found: tf.Tensor = self._functions[inserts](keys)
      return found
    return self._locate(keys, inserts)

  @functools.cached_property
  def _functions(self) -> dict[bool, Any]:
    """Functions that locate keys in eager mode, by whether they insert."""
    keys = tf.TensorSpec([None], tf.int64)
    return {
      inserts: tf.function(
        functools.partial(self._locate, inserts=inserts),
        input_signature=[keys],
        autograph=False,
      )
      for inserts in (True, False)
    }

  def _locate(self, keys: tf.Tensor, inserts: bool) -> tf.Tensor:
    index = _Index(self.name)
    found = index.find(keys)
    is_due = tf.not_equal(index.digest(), self._counts()[_DIGEST])
    if inserts:
      is_due |= tf.reduce_any(found < 0)
    found = tf.cond(
      is_due, lambda: self._locked(index, keys, inserts), lambda: found
    )
    return found if inserts else tf.where(found < 0, _initial(keys), found)

  def _locked(
    self, index: '_Index', keys: tf.Tensor, inserts: bool
  ) -> tf.Tensor:
    """Makes the index anew if that is due, and inserts keys, under the lock."""
    found: list[tf.Tensor] = []

    def job(keys: tf.Tensor) -> Sequence[Any]:
      counts = self._counts()
      is_right = tf.debugging.Assert(
        tf.equal(counts[_NUM_SHARDS], self.num_shards),
        [
          f'{self.rows.name}: this table has {self.num_shards} shards, and the '
          'values that it was given are of a table of another number of them. '
          'Make it with num_shards =',
          counts[_NUM_SHARDS],
        ],
      )
      with tf.control_dependencies([is_right]):
        is_stale = tf.not_equal(index.digest(), counts[_DIGEST])
        renewed = tf.cond(
          is_stale,
          lambda: self._renew(index, counts),
          lambda: tf.constant(False),
        )
      with tf.control_dependencies([renewed]):
        known = index.find(keys)
      if not inserts:
        found.append(known)
        return [known]
      inserted = tf.cond(
        tf.reduce_any(known < 0),
        lambda: self._insert(index, counts, keys, known),
        lambda: known,
      )
      found.append(inserted)
      return [inserted]

    ps_lock.run([ps_lock.Job(self.counts, job, [keys])])
    return found[0]

  def _renew(self, index: '_Index', counts: tf.Tensor) -> tf.Tensor:
    """Makes the index from the keys."""
    keys = apply.read(self.keys)[NUM_INITIAL : counts[_USED]]
    rows = tf.range(NUM_INITIAL, counts[_USED], dtype=tf.int64)
    with tf.control_dependencies([index.replace(keys, rows)]):
      noted = index.note_digest(counts[_DIGEST])
    with tf.control_dependencies([noted]):
      return tf.constant(True)

  def _insert(
    self,
    index: '_Index',
    counts: tf.Tensor,
    keys: tf.Tensor,
    known: tf.Tensor,
  ) -> tf.Tensor:
    """Gives a row to each key that has none; returns the rows of all keys."""
    used = counts[_USED]
    is_new = known < 0
    new = tf.boolean_mask(keys, is_new)
    number = tf.size(new, tf.int64)
    rows = used + tf.range(number, dtype=tf.int64)
    digest = counts[_DIGEST] + _digest(new, rows)
    fit = [growing.fit(each, used + number) for each in (self.rows, self.keys)]
    with tf.control_dependencies(fit):
      initial = tf.raw_ops.ResourceGather(
        resource=self.rows.handle, indices=_initial(new), dtype=self.rows.dtype
      )
    with tf.control_dependencies([initial]):
      written = [
        tf.raw_ops.ResourceScatterUpdate(
          resource=variable.handle, indices=rows, updates=values
        )
        for variable, values in ((self.rows, initial), (self.keys, new))
      ]
      counted = tf.raw_ops.AssignVariableOp(
        resource=self.counts.handle,
        value=tf.stack([used + number, digest, counts[_NUM_SHARDS]]),
      )
    # Who finds a key in the index reads its row without a lock.
    with tf.control_dependencies([*written, counted]):
      inserted = index.insert(new, rows)
    with tf.control_dependencies([inserted]):
      noted = index.note_digest(digest)
    with tf.control_dependencies([noted]):
      order = used + tf.cumsum(tf.cast(is_new, tf.int64)) - 1
      return tf.where(is_new, order, known)

  def _counts(self) -> tf.Tensor:
    return tf.ensure_shape(apply.read(self.counts), [NUM_COUNTS])


class _Index:
  """Hash tables of TensorFlow on the current device, in a graph.

  The second has the digest of the keys that the first is made for.
  """

  def __init__(self, name: str) -> None:
    self._rows, self._digest = (
      tf.raw_ops.MutableHashTableV2(
        key_dtype=tf.int64,
        value_dtype=tf.int64,
        shared_name=f'{name}/{what}',
      )
      for what in ('rows', 'digest')
    )

  def find(self, keys: tf.Tensor) -> tf.Tensor:
    found = _find(self._rows, keys)
    return tf.ensure_shape(found, keys.shape)

  def digest(self) -> tf.Tensor:
    return tf.ensure_shape(_find(self._digest, _int64(0)), [])

  def insert(self, keys: tf.Tensor, rows: tf.Tensor) -> Any:
    return tf.raw_ops.LookupTableInsertV2(
      table_handle=self._rows, keys=keys, values=rows
    )

  def replace(self, keys: tf.Tensor, rows: tf.Tensor) -> Any:
    return tf.raw_ops.LookupTableImportV2(
      table_handle=self._rows, keys=keys, values=rows
    )

  def note_digest(self, digest: tf.Tensor) -> Any:
    return tf.raw_ops.LookupTableInsertV2(
      table_handle=self._digest, keys=_int64(0), values=digest
    )


def initial_counts(num_shards: int) -> list[int]:
  """Returns the counts of a shard without keys."""
  return [NUM_INITIAL, 0, num_shards]


def shard_of(keys: tf.Tensor, num_shards: int) -> tf.Tensor:
  """Returns the shard of each key, an int32 tensor of the keys' shape."""
  return tf.cast(_high_bits(_mixed(keys)) % num_shards, tf.int32)


def _initial(keys: tf.Tensor) -> tf.Tensor:
  """Returns the number of the row that has each key's initial value."""
  # Mixed once more, for those of one shard are alike in what chose it.
  return _high_bits(_mixed(_mixed(keys))) % NUM_INITIAL


def _digest(keys: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
  """Returns what keys, in their rows, add to the digest of all."""
  return tf.reduce_sum(_mixed(_mixed(keys) + rows))


def _mixed(numbers: tf.Tensor) -> tf.Tensor:
  """Returns numbers of which each bit depends on all those below it."""
  product = numbers * _SPREADS
  return tf.bitwise.bitwise_xor(product, _high_bits(product)) * _SPREADS


def _high_bits(numbers: tf.Tensor) -> tf.Tensor:
  """Returns the higher half of the bits of int64 numbers, as such numbers."""
  unsigned = tf.bitcast(numbers, tf.uint64)
  shifted = tf.bitwise.right_shift(unsigned, tf.constant(32, tf.uint64))
  return tf.bitcast(shifted, tf.int64)


def _find(table: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
  return tf.raw_ops.LookupTableFindV2(
    table_handle=table, keys=keys, default_value=_int64(_ABSENT)
  )


def _int64(value: int) -> tf.Tensor:
  return tf.constant(value, tf.int64)
