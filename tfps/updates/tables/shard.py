"""Part of a table that is on one ps: rows and the keys that they belong to.

A hash table on the ps maps each key to the address of its row. It is only an
index of the keys, which a variable holds beside the rows: snapshots, replicas
and checkpoints need to know nothing but variables. Beside the keys is a digest
of them. If the index has been made for another one, because variables were
restored or the ps was started again, it is made anew from the keys.
"""

from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import functools
from typing import Any
from typing import TypeVar

import tensorflow as tf

from tfps._compat import replicated_writes
from tfps.updates import apply
from tfps.updates import ps_lock
from tfps.updates.tables import addresses as addresses_lib
from tfps.updates.tables import counts as counts_lib
from tfps.updates.tables import index as index_lib
from tfps.updates.tables import rare_branch
from tfps.updates.tables import resources
from tfps.updates.tables import sharing
from tfps.updates.tables import storage
from tfps.updates.tables import weights

_Shared = TypeVar('_Shared')
_Count = counts_lib.Count
_FIRST = counts_lib.NUM_INITIAL


@dataclasses.dataclass(frozen=True, eq=False)
class Shard:
  """Rows and their keys, on one device.

  Attributes:
    num_shards: how many shards the table has.
    values: resources by name, as `resources.with_hash_tables` returns them.
      Variables are `rows`, of shape [number of rows, ...], those of
      `weights.of_shard`, and those of the policies. All with an element for
      each row grow, and so does `free`. The first `counts.NUM_INITIAL` rows
      have initial values, each other one is that of the key of its number.
      Hash tables are `index` and `digest`, also of the policies' keys.
    admission: decides which new keys get a row; None gives one to all.
    eviction: decides which keys lose their rows; None leaves them to all.
    shared: parts of functions that similar shards share.
  """

  num_shards: int
  values: Mapping[str, Any]
  admission: Any = None
  eviction: Any = None
  shared: sharing.Shared = dataclasses.field(default_factory=sharing.Shared)
  _used: set[Any] = dataclasses.field(default_factory=set, init=False)

  def __post_init__(self) -> None:
    if self.addresses is not None:
      addresses_lib.attach(self.rows, self.addresses)

  @property
  def rows(self) -> Any:
    """The variable with the rows, `[capacity, dim]`."""
    return self.values['rows']

  @property
  def counts(self) -> Any:
    """The variable with the counts of keys and rows."""
    return self.values['counts']

  @functools.cached_property
  def addresses(self) -> addresses_lib.Addresses | None:
    """Addresses of the rows; None if a row never changes its key."""
    if 'addresses' not in self.values:
      return None
    return addresses_lib.Addresses(self.values['addresses'], self.counts)

  @property
  def kind(self) -> 'Kind':
    """The number of shards, the types of variables and the policies."""
    kinds = resources.kinds(self.values)
    return Kind(self.num_shards, kinds, self.admission, self.eviction)

  def part(self, prefix: str) -> 'Shard':
    """Returns the shard of those variables whose names begin with a prefix."""
    values = {
      name.removeprefix(prefix): value
      for name, value in self.values.items()
      if name.startswith(prefix)
    }
    return Shard(self.num_shards, values, shared=self.shared)

  def read(
    self, keys: tf.Tensor, *, inserts: bool
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Reads the rows of keys.

    Args:
      keys: as for `locate`.
      inserts: as for `locate`.

    Returns:
      The rows, with the initial values of keys that have none, and their
      addresses as `locate` returns them, by which updates name them.
    """
    rows = found = self.locate(keys, inserts=inserts)
    initial = functools.partial(index_lib.initial_of, keys)
    if self.addresses is not None:
      rows = addresses_lib.rows_of(found)
    if not inserts or self.admission is not None:  # some may have no row
      rows = tf.where(found < 0, initial(), rows)
    values = self.gather('rows', rows)
    if self.addresses is None:
      return values, found
    with tf.control_dependencies([values]):
      is_right = (found < 0) | self.addresses.are_current(found)
    # A row of which another key has got hold meanwhile is not shown.
    values = tf.cond(
      tf.reduce_all(is_right),
      lambda: values,
      lambda: tf.where(
        is_right[:, tf.newaxis], values, self.gather('rows', initial())
      ),
    )
    return values, found

  def locate(self, keys: tf.Tensor, *, inserts: bool) -> tf.Tensor:
    """Finds the rows of keys.

    No lock is taken if all keys are known.

    Args:
      keys: different int64 keys of shape [n], on the shard's device, which is
        the current one.
      inserts: whether keys that are not known get rows, if they are admitted.

    Returns:
      Addresses, an int64 tensor of shape [n]; -1 for keys that have no row.
    """
    if tf.executing_eagerly():  # in which no lock is taken
      found: tf.Tensor = self._functions[inserts](keys)
      return found
    return self._locate(keys, inserts)

  def locate_within_lock(self, keys: tf.Tensor, *, inserts: bool) -> tf.Tensor:
    """Finds the rows of keys within a `ps_lock.Job`.

    Args:
      keys: as for `locate`.
      inserts: as for `locate`.

    Returns: as `locate` does.
    """
    index = self._index()
    right = [self._make_index_right(index)]
    if self.eviction is not None:
      right.append(self.eviction.renew_scores(self))
    with tf.control_dependencies(right):
      known = index.find(keys)
    if not inserts:
      return known
    found = tf.cond(
      index.lacks_any(known),
      lambda: self._insert(index, keys, known),
      lambda: known,
    )
    if self.eviction is None:
      return found
    with tf.control_dependencies([found]):
      evicted = self.eviction.evict(self, addresses_lib.rows_of(found))
    with tf.control_dependencies([evicted]):
      return tf.identity(found)

  def remove(self, rows: tf.Tensor) -> tf.Tensor:
    """Takes rows from their keys, within a `ps_lock.Job`.

    Args:
      rows: numbers of rows that belong to keys.

    Returns:
      A tensor, after which it has.
    """
    assert self.addresses is not None
    index, held = self._index(), counts_lib.read(self.counts)
    keys = self.gather('keys', rows)
    addresses, taken = self.addresses.take(rows)
    number = tf.size(rows, tf.int64)
    free = self.values['free']
    lost = index_lib.digest_of(keys, addresses)
    with tf.control_dependencies(
      [resources.fit(free, held[_Count.FREE] + number)]
    ):
      places = held[_Count.FREE] + tf.range(number)
      written = resources.scatter(free, places, rows)
    with resources.after_both(taken, written):
      counted = counts_lib.add(
        self.counts, {_Count.FREE: number, _Count.DIGEST: -lost}
      )
    with resources.after(counted, index.remove(keys)):
      noted = index.note_digest(held[_Count.DIGEST] - lost)
    with resources.after(noted):
      return tf.constant(True)

  def gather(self, name: str, rows: tf.Tensor) -> tf.Tensor:
    """Returns what the variable of a name has for rows, given their numbers."""
    return resources.gather(self.values[name], rows)

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
    index = self._index()
    eviction = self.eviction if inserts else None
    with resources.after(eviction and eviction.note_lookup(self.counts)):
      held = counts_lib.read(self.counts)
    found = index.find(keys)
    is_due = index.is_stale(held[_Count.DIGEST])
    if inserts:
      is_due |= index.lacks_any(found)
    if eviction is not None:
      is_due |= eviction.is_due(held)
    if inserts and replicated_writes.replica_of(self.rows) is not None:
      # It writes on two devices, so that it cannot be one operation.
      found = tf.cond(
        is_due, lambda: self._locked(keys, inserts), lambda: found
      )
    else:
      handles = resources.handles(self.values)
      found = self._locked_branch(inserts)(is_due, handles, keys, found)
    if eviction is not None:
      rows = addresses_lib.rows_of(found)
      with resources.after(
        eviction.note_use(self.values['scores'], rows, held)
      ):
        found = tf.identity(found)
    return found

  def _locked_branch(self, inserts: bool) -> rare_branch.RareBranch:
    """Returns the branch of `_locked`, which similar shards share."""
    kind = self.kind

    def find(handles: Sequence[tf.Tensor], keys: tf.Tensor) -> tf.Tensor:
      return kind.bound(handles)._locked(keys, inserts)

    return self.share(
      (kind, inserts),
      lambda: rare_branch.RareBranch(find, resources.handles(self.values)),
    )

  def share(self, similar: Hashable, make: Callable[[], _Shared]) -> _Shared:
    """Returns what similar shards share; it goes with the last that uses it.

    Args:
      similar: all that it depends on, to be made of nothing else.
      make: makes it.
    """
    used = sharing.get_or_make(self.shared, similar, make)
    self._used.add(used)
    return used

  def _index(self) -> index_lib.Index:
    return index_lib.Index(self.values['index'], self.values['digest'])

  def _locked(self, keys: tf.Tensor, inserts: bool) -> tf.Tensor:
    """Finds rows under the lock of the shard's device."""
    found: list[tf.Tensor] = []

    def job(keys: tf.Tensor) -> Sequence[Any]:
      found.append(self.locate_within_lock(keys, inserts=inserts))
      return found

    ps_lock.run([ps_lock.Job(self.counts, job, [keys])])
    return found[0]

  def _make_index_right(self, index: index_lib.Index) -> tf.Tensor:
    """Makes the index anew if it is for other keys; returns whether it was."""
    held = counts_lib.read(self.counts)
    is_right = tf.debugging.Assert(
      tf.equal(held[_Count.NUM_SHARDS], self.num_shards),
      [
        f'This table has {self.num_shards} shards, and its variables were '
        'assigned those of a table with another number, so that keys are in '
        'wrong shards. Restore it by load_weights, a tf.train.Checkpoint or a '
        'Recovery, which assign keys to shards. The other number is',
        held[_Count.NUM_SHARDS],
      ],
    )

    with resources.after(is_right):
      return index.renew_if_stale(
        held[_Count.DIGEST], lambda: self._keys(held[_Count.USED])
      )

  def _keys(self, used: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns all keys with a row, and their addresses."""
    if self.addresses is None:
      keys = apply.read(self.values['keys'])[_FIRST:used]
      return keys, tf.range(_FIRST, used, dtype=tf.int64)
    rows, addresses = self.addresses.in_use(used)
    return self.gather('keys', rows), addresses

  def _insert(
    self, index: index_lib.Index, keys: tf.Tensor, known: tf.Tensor
  ) -> tf.Tensor:
    """Gives a row to keys that have none; returns the addresses of all keys."""
    places, num_refused = tf.where(known < 0)[:, 0], 0
    if self.admission is not None:
      is_admitted = self.admission.admits(self, tf.gather(keys, places))
      num_refused = tf.math.count_nonzero(~is_admitted)
      places = tf.boolean_mask(places, is_admitted)
    new = tf.gather(keys, places)
    addresses, given = self._give_rows(new, num_refused)
    with tf.control_dependencies([given]):  # others read rows without a lock
      inserted = index.insert(new, addresses)
    with resources.after(inserted):
      noted = index.note_digest(given)
    with resources.after(noted):
      at = places[:, tf.newaxis]
      return tf.tensor_scatter_nd_update(known, at, addresses)

  def _give_rows(
    self, keys: tf.Tensor, num_refused: Any
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Gives rows to keys, and counts them, and those that get none.

    Returns:
      The addresses, and the digest of all keys.
    """
    held, initial = counts_lib.read(self.counts), index_lib.initial_of(keys)
    number, used = tf.size(keys, tf.int64), held[_Count.USED]
    again = tf.constant(0, tf.int64)
    if self.addresses is not None:
      again = tf.minimum(number, held[_Count.FREE])
    first = used + tf.range(number - again)
    with tf.control_dependencies(self._fit(used, number - again)):
      old = self._free(held, again)
      rows = tf.concat([old, first], axis=0)
    with tf.control_dependencies([rows]):
      made = resources.scatter(self.rows, rows, self.gather('rows', initial))
    with resources.after(made):  # which fails if the disk of a storage is full
      addresses, given = first, list[Any]()
      if self.addresses is not None:
        addresses, given = self.addresses.give(old, first)
      given.append(resources.scatter(self.values['keys'], rows, keys))
      if self.eviction is not None:
        scores = self.eviction.first_scores(number, held)
        given.append(resources.scatter(self.values['scores'], rows, scores))
    added = index_lib.digest_of(keys, addresses)
    changes = {_Count.USED: number - again, _Count.FREE: -again}
    changes |= {_Count.DIGEST: added, _Count.REFUSED: num_refused}
    # They count once they are there: an execution may be cut short before.
    with resources.after_both(made, *given):
      counted = counts_lib.add(self.counts, changes)
    with resources.after(counted):
      return addresses, held[_Count.DIGEST] + added

  def _free(self, held: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
    """Returns the numbers of rows that were taken from keys last."""
    if self.addresses is None:
      return tf.zeros([0], tf.int64)
    num_free = held[_Count.FREE]
    return self.gather('free', tf.range(num_free - number, num_free))

  def _fit(self, used: tf.Tensor, number: tf.Tensor) -> list[tf.Tensor]:
    """Makes room for new rows, beside those in use."""
    own = [each for name, each in self.values.items() if name in weights.BY_ROW]
    fitted = [resources.fit(each, used + number) for each in own]
    return fitted + storage.forget_earlier(self.rows, tf.equal(used, _FIRST))


@dataclasses.dataclass(frozen=True)
class Kind:
  """Properties of a shard without its resources; equal for similar ones."""

  num_shards: int
  resources: tuple[resources.Kind, ...]
  admission: Any
  eviction: Any

  def bound(self, handles: Sequence[tf.Tensor]) -> Shard:
    """Returns a shard of the kind in a function that is given its handles."""
    values = resources.bound(self.resources, handles)
    return Shard(self.num_shards, values, self.admission, self.eviction)
