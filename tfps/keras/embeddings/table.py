"""Table of embeddings that gets a row for each key it has not seen before."""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import functools
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfps._compat import keras as keras_compat
from tfps._compat import keras_trainer
from tfps._compat import keras_variables
from tfps._compat import reads
from tfps._compat import side_executor
from tfps.keras import table_slots
from tfps.keras.embeddings import checkpoints
from tfps.keras.embeddings import initial_values
from tfps.keras.embeddings import keys as keys_lib
from tfps.keras.embeddings import metrics
from tfps.keras.embeddings import placed
from tfps.keras.embeddings import policies
from tfps.keras.embeddings import slices
from tfps.updates.tables import admission as admission_lib
from tfps.updates.tables import contents
from tfps.updates.tables import counts as counts_lib
from tfps.updates.tables import eviction as eviction_lib
from tfps.updates.tables import index as index_lib
from tfps.updates.tables import resharding
from tfps.updates.tables import saved_shards
from tfps.updates.tables import shard as shard_lib
from tfps.updates.tables import sharing
from tfps.updates.tables import storage as storage_lib
from tfps.updates.tables import weights as weights_lib
from tfps.variables import extended as extended_lib
from tfps.variables import row_writes


@keras.saving.register_keras_serializable('tfps')
class Table(keras.layers.Layer):
  """A table of rows keyed by any integer or string, which grows.

  A key gets a row when it is first looked up in training. Until then it reads
  an initial value, which depends on nothing but the key and the initializer.
  Under a strategy of this package, rows are on the ps, divided by the key, and
  optimizers update those that a step has looked up, with their slots, and no
  others, as if made lazy by `tfps.keras.optimizers.lazy`.

  Use `Embedding` in models, and a table for steps of your own.

  String keys are kept as 63-bit numbers (FarmHash): of 10^8 keys, any two are
  the same with a probability of 1 in 1,800.

  Args:
    width: number of elements of a row.
    initializer: Keras initializer of rows. There are 1,024 initial values.
    admission: which keys get a row: one of `Counter`, `BloomCounter` and
      `Probability`. By default all do.
    eviction: which keys lose their row: one of `Ttl`, `Lru` and `Lfu`. By
      default none do. What they lose is forgotten: a key that returns begins
      anew.
    storage: a `Storage` keeps most rows in files, and a part in memory. By
      default all are in memory.
    num_shards: number of parts of the rows, assigned to the ps in turn; by
      default that of ps. Values are restored from any number to any other.
    dtype: type of the rows.
    name: name of the table.

  Raises:
    TypeError: the admission, eviction or storage is something else.
    ValueError: the width or number of shards is not positive.
  """

  def __init__(
    self,
    width: int,
    initializer: Any = 'uniform',
    *,
    admission: admission_lib.Admission | None = None,
    eviction: eviction_lib.Eviction | None = None,
    storage: storage_lib.Storage | None = None,
    num_shards: int | None = None,
    dtype: Any = None,
    name: str | None = None,
    **kwargs: Any,
  ) -> None:
    super().__init__(dtype=dtype, name=name, **kwargs)
    self.label = self.name  # in metrics and errors; a layer sets its own
    for value, what in ((width, 'width'), (num_shards, 'num_shards')):
      if value is not None and value < 1:
        raise ValueError(f'{self.name}: {what}={value}, but it is at least 1.')
    self.width = width
    self.initializer = keras.initializers.get(initializer)
    self.admission = policies.given(self.name, 'admission', admission)
    self.eviction = policies.given(self.name, 'eviction', eviction)
    self.storage = policies.given(self.name, 'storage', storage)
    self.num_shards = num_shards
    self._made: list[dict[str, keras.Variable]] = []
    self._shards: list[shard_lib.Shard] = []
    self._restores = checkpoints.Restores()
    checkpoints.take_part()
    keras_compat.set_weights_together()

  def build(self, input_shape: Any = None) -> None:
    """Makes the table's variables, in the scope of the current strategy.

    Raises:
      ValueError: the strategy has no ps, or it has replicas of variables, which
        a table with storage cannot have.
    """
    del input_shape
    if self._made:
      return
    extended_lib.register_with_keras()
    self.branches = sharing.in_use()
    number = self.num_shards or placed.num_ps(self)
    self._made = [self._make(index, number) for index in range(number)]
    self.built = True
    metrics.offer(self, Table._counts)
    if not self._have_values():
      self._restores.resume()

  def lookup(self, keys: Any, *, training: bool | None = None) -> tf.Tensor:
    """Returns the rows of keys.

    Each key's row is transferred once, however often the key occurs.

    Args:
      keys: integers or strings, a tensor of any shape.
      training: whether keys that are new get a row. If not, no gradient
        reaches the table. By default they do where a `tf.GradientTape` records.
        They never do in a table that is not `trainable`.

    Returns:
      Tensor of shape `keys.shape + [width]`.

    Raises:
      TypeError: the keys are of another type.
      ValueError: a gradient passes a `tf.while_loop`, or what is made of one,
        that looks keys up, and is traced.
      RuntimeError: a graph is traced, and the table has not been built.
    """
    if not self._made and not tf.executing_eagerly():
      raise RuntimeError(
        f'{self.label}: looked up in a function, and not built. Call its '
        "build() in the strategy's scope, before steps."
      )
    self.build()
    keys = keys_lib.as_int64(tf.convert_to_tensor(keys), self.label)
    if keras_trainer.wants_shapes_only() or not self._have_values():
      shape = tf.concat([tf.shape(keys), [self.width]], axis=0)
      zeros = tf.zeros(shape, self.variable_dtype)
      return tf.ensure_shape(zeros, [*keys.shape, self.width])
    if training is None:
      training = reads.is_recording()
    training = training and self.trainable
    read = functools.partial(self._read, inserts=training)
    rows = reads.read_distinct(read, keys, tf.TensorShape([self.width]))
    return rows if training else tf.stop_gradient(rows)

  def call(self, keys: Any, training: bool | None = None) -> tf.Tensor:
    return self.lookup(keys, training=training)

  def items(
    self, max_bytes: int = row_writes.SLICE_BYTES
  ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields all keys that have a row, with their rows, part by part.

    Keys that come, go or change meanwhile may be missing or be there twice;
    each part is of one moment.

    Args:
      max_bytes: how many bytes of rows a part has at most, unless one has more.

    Yields:
      int64 array of shape [n], the keys; strings as the numbers that
      `tf.strings.to_hash_bucket_fast(keys, 2**63 - 1)` returns for them. And
      array of shape [n, width], their rows.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    if not self._have_values():
      return
    number = max(1, max_bytes // (self.width * self._shards[0].rows.dtype.size))
    for shard in self._shards:
      first, has_more = 0, True
      read = tf.function(
        functools.partial(contents.part, shard), autograph=False
      )
      while has_more:
        with side_executor.run_aside(shard.rows.device):
          found = read(
            tf.constant(first, tf.int64), tf.constant(number, tf.int64)
          )
          keys, rows, more = (each.numpy() for each in found)
        if len(keys):
          yield keys, rows
        first, has_more = first + number, bool(more)

  @property
  def shards(self) -> Sequence[shard_lib.Shard]:
    """The table's parts; none as long as it has no values."""
    self._have_values()
    return self._shards

  def num_keys(self) -> int:
    """Returns how many keys have a row.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    return sum(int(counts_lib.num_keys(counts)) for counts in self._counts())

  def num_evicted(self) -> int:
    """Returns how many keys have been evicted; one may be so repeatedly.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    return counts_lib.total(self._counts(), counts_lib.Count.EVICTED)

  def num_late(self) -> int:
    """Returns how many updates of rows came too late and were dropped.

    Their keys were evicted between look-up and update.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    return counts_lib.total(self._counts(), counts_lib.Count.LATE)

  def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
    return (*input_shape, self.width)

  def get_config(self) -> dict[str, Any]:
    return {
      **super().get_config(),
      'width': self.width,
      'initializer': keras.initializers.serialize(self.initializer),
      'admission': keras.saving.serialize_keras_object(self.admission),
      'eviction': keras.saving.serialize_keras_object(self.eviction),
      'storage': keras.saving.serialize_keras_object(self.storage),
      'num_shards': self.num_shards,
    }

  def restore_otherwise(self, visit: checkpoints.Visit) -> bool:
    """Restores a checkpoint of a table with other shards or policies.

    Args:
      visit: of the table.

    Returns:
      Whether it does; if not, TensorFlow is to restore the variables.
    """
    names = checkpoints.saved_names(visit)
    if not names or names == [set(made) for made in self._made]:
      return False
    if self._have_values():
      checkpoints.restore_table(visit, self._shards, self._made)
    else:
      self._restores.wait(visit)
    return True

  def save_own_variables(self, store: Any) -> None:
    """Saves all shards slice by slice; Keras calls it.

    Args:
      store: of Keras, or another mapping.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    if self._have_values():
      slices.save(store, map(saved_shards.view, self._shards))

  def load_own_variables(self, store: Any) -> None:
    """Loads what a table with any number of shards has saved, as it saves.

    Args:
      store: of Keras, or another mapping.

    Raises:
      ValueError: it is not of a table, or of one with other policies or rows.
      tf.errors.OpError: a ps is lost.
    """
    saved = slices.load(store)
    if not saved and self._made:
      raise ValueError(
        f'{self.label}: no table was saved in its place. Load the same model.'
      )
    if saved and not self._have_values():
      raise ValueError(
        f'{self.label}: a table is to be loaded into one that is not built. '
        'Call the model once, or build it, before.'
      )
    if saved:
      resharding.restore(self._shards, saved)

  def set_own_weights(self, values: Mapping[int, Any], optimizer: Any) -> None:
    """Sets the weights to what `get_weights` has returned; Keras calls it.

    Args:
      values: an array for each variable, by its id; of others, too.
      optimizer: has slots of the rows, which keys keep; None for none.

    Raises:
      ValueError: they are of a table with other rows.
      tf.errors.OpError: a ps is lost.
    """
    if self._have_values():
      saved = [slices.of_variables(made, values) for made in self._made]
      with table_slots.kept(optimizer, self._shards):
        resharding.restore(self._shards, saved)

  def _counts(self) -> list[Any]:
    """Returns the counts of each shard."""
    return [made['counts'].numpy() for made in self._made]

  def _make(self, index: int, num_shards: int) -> dict[str, keras.Variable]:
    """Makes the variables of a shard, by name."""
    removes = self.admission is not None or self.eviction is not None
    others = [*weights_lib.of_shard(num_shards, removes=removes)]
    for policy in (self.admission, self.eviction):
      others += policy.weights(num_shards) if policy is not None else []
    made = {
      'rows': self.add_weight(
        shape=(counts_lib.NUM_INITIAL, self.width),
        initializer=initial_values.Placed(self.initializer, index, grows=True),
        dtype=self.variable_dtype,
        name=f'rows_{index}',
      )
    }
    for weight in others:
      values = initial_values.Values(weight.values)
      made[weight.name] = self.add_weight(
        shape=(weight.length,),
        initializer=initial_values.Placed(values, index, grows=weight.grows),
        dtype=weight.dtype,
        trainable=False,
        name=f'{weight.name}_{index}',
      )
      if admission_lib.is_of_keys_without_row(weight.name):
        made[weight.name].tfps_is_served = False
    table_slots.note_rows(made['rows'], self, index)
    for variable in made.values():  # checkpoints contain what attributes are
      setattr(self, variable.name, variable)
    return made

  def _have_values(self) -> bool:
    """Returns whether there are shards, after making them if there may be."""
    if self._shards:
      return True
    shards = [
      {name: keras_variables.value_of(weight) for name, weight in made.items()}
      for made in self._made
    ]
    values = [value for shard in shards for value in shard.values()]
    if not values or any(value is None for value in values):
      return False
    self._shards = [placed.shard(self, own, len(shards)) for own in shards]
    with tf.init_scope():
      table_slots.begin_table(self._shards)
      self._restores.resume()
    return True

  def _read(self, keys: tf.Tensor, *, inserts: bool) -> tf.Tensor:
    """Returns the rows of different keys, of shape [n]."""
    number = len(self._shards)
    if number == 1:
      return placed.rows_of(self._shards[0], keys, inserts=inserts)
    places = index_lib.shard_of(keys, number)
    zero, one = (reads.constant(value, tf.int32) for value in (0, 1))
    numbers = tf.range(zero, tf.size(keys), one)
    order = tf.dynamic_partition(numbers, places, number)
    parts = tf.dynamic_partition(keys, places, number)
    rows = [
      placed.rows_of(shard, part, inserts=inserts)
      for shard, part in zip(self._shards, parts, strict=True)
    ]
    return tf.dynamic_stitch(order, rows)
