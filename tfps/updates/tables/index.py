"""Index of a shard's keys: a hash table from each key to its row's address."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfps._compat import reads
from tfps.updates.tables import counts
from tfps.updates.tables import resources

_ABSENT = -1
# An odd number near 2^64 over the golden ratio: multiplication by it spreads
# numbers that are near each other (Knuth, "The Art of Computer Programming",
# volume 3, section 6.4).
_SPREADS = -7046029254386353131
_LOW_BITS = (1 << 32) - 1


class Index:
  """Index of a shard's keys in a graph.

  Args:
    addresses: hash table from keys to addresses of rows.
    digest: hash table with the digest of those keys that the other is made for.
  """

  def __init__(self, addresses: Any, digest: Any) -> None:
    self._addresses, self._digest = addresses.handle, digest.handle

  def find(self, keys: tf.Tensor) -> tf.Tensor:
    """Returns the addresses of keys' rows; -1 for those that have none."""
    return _find(self._addresses, keys)

  def digest(self) -> tf.Tensor:
    """Returns the digest that was noted last; -1 if none was."""
    return _find(self._digest, _int64(0))

  def lacks_any(self, addresses: tf.Tensor) -> tf.Tensor:
    """Returns whether some keys have no row, given what `find` has returned."""
    are_absent = tf.less(addresses, _int64(0))
    return tf.reduce_any(are_absent, axis=reads.constant((0,), tf.int32))

  def insert(self, keys: tf.Tensor, addresses: tf.Tensor) -> tf.Operation:
    """Sets the addresses of keys; both are `[n]` of int64."""
    return tf.raw_ops.LookupTableInsertV2(
      table_handle=self._addresses, keys=keys, values=addresses
    )

  def remove(self, keys: tf.Tensor) -> tf.Operation:
    """Removes keys, `[n]` of int64; those that are missing are ignored."""
    return tf.raw_ops.LookupTableRemoveV2(
      table_handle=self._addresses, keys=keys
    )

  def is_stale(self, digest: tf.Tensor) -> tf.Tensor:
    """Returns whether it was made for keys of another digest."""
    return tf.not_equal(self.digest(), digest)

  def renew_if_stale(
    self,
    digest: tf.Tensor,
    keys: Callable[[], tuple[tf.Tensor, tf.Tensor]],
  ) -> tf.Tensor:
    """Makes the index anew if it is for other keys; returns whether it was.

    Args:
      digest: the digest of the keys.
      keys: returns them and their addresses.
    """

    def renew() -> tf.Tensor:
      known, addresses = keys()
      replaced = tf.raw_ops.LookupTableImportV2(
        table_handle=self._addresses, keys=known, values=addresses
      )
      with resources.after(replaced):
        noted = self.note_digest(digest)
      with resources.after(noted):
        return tf.constant(True)

    return tf.cond(self.is_stale(digest), renew, lambda: tf.constant(False))

  def note_digest(self, digest: tf.Tensor) -> tf.Operation:
    """Sets the digest of the keys, a scalar of int64."""
    return tf.raw_ops.LookupTableInsertV2(
      table_handle=self._digest, keys=_int64(0), values=digest
    )


def shard_of(keys: tf.Tensor, num_shards: Any) -> tf.Tensor:
  """Returns the shard of each key, an int32 tensor of the keys' shape."""
  if isinstance(num_shards, int):
    num_shards = _int64(num_shards)
  return tf.cast(_high_bits(mixed(keys)) % num_shards, tf.int32)


def initial_of(keys: tf.Tensor) -> tf.Tensor:
  """Returns the number of the row that has each key's initial value."""
  # Mixed once more, for those of one shard are alike in what chose it.
  return _high_bits(mixed(mixed(keys))) % counts.NUM_INITIAL


def digest_of(keys: tf.Tensor, addresses: tf.Tensor) -> tf.Tensor:
  """Returns what keys, with their rows, add to the digest of all."""
  return tf.reduce_sum(mixed(mixed(keys) + addresses))


def mixed(numbers: tf.Tensor) -> tf.Tensor:
  """Returns int64 numbers of which each bit depends on all those below it."""
  spreads = _int64(_SPREADS)
  product = numbers * spreads
  return tf.bitwise.bitwise_xor(product, _high_bits(product)) * spreads


def _high_bits(numbers: tf.Tensor) -> tf.Tensor:
  """Returns the higher half of the bits of int64 numbers, as such numbers."""
  shifted = tf.bitwise.right_shift(numbers, _int64(32))  # keeps the sign
  return tf.bitwise.bitwise_and(shifted, _int64(_LOW_BITS))


def _find(table: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
  found = tf.raw_ops.LookupTableFindV2(
    table_handle=table, keys=keys, default_value=_int64(_ABSENT)
  )
  found.set_shape(keys.shape)
  return found


def _int64(value: int) -> tf.Tensor:
  return reads.constant(value, tf.int64)
