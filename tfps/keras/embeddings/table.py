"""Table of embeddings that gets a row for each key it has not seen before."""

import functools
from typing import Any
import uuid

import keras
import tensorflow as tf

from tfps._compat import handles
from tfps._compat import reads
from tfps.updates import key_index
from tfps.variables import extended as extended_lib
from tfps.variables import growing
from tfps.wire import sparse_rows


@keras.saving.register_keras_serializable('tfps')
class Table(keras.layers.Layer):
  """A table of rows keyed by any integer or string, which grows.

  A key gets a row when it is first looked up in training. Until then it reads
  an initial value, which depends on nothing but the key and the initializer.
  Under a strategy of this package, rows are on the ps, divided by the key, and
  optimizers update those that a step has looked up, with their slots, and no
  others: `Adam` computes what `tfps.keras.lazy` makes of it.

  Use `Embedding` in models, and a table for steps of your own.

  String keys are kept as 63-bit numbers (FarmHash): of 10^8 keys, any two are
  the same with a probability of 1 in 1,800.

  Args:
    width: number of elements of a row.
    initializer: Keras initializer of rows. There are 1,024 initial values.
    num_shards: number of parts that the rows are divided into, by default the
      number of ps. Values of a table can be restored only to one with the same
      number: choose it if the number of ps is going to change. Parts are
      assigned to the ps in turn.
    dtype: type of the rows.
    name: name of the table.

  Raises:
    ValueError: the width or number of shards is not positive, or the current
      strategy has no ps.
  """

  def __init__(
    self,
    width: int,
    initializer: Any = 'uniform',
    *,
    num_shards: int | None = None,
    dtype: Any = None,
    name: str | None = None,
    **kwargs: Any,
  ) -> None:
    super().__init__(dtype=dtype, name=name, **kwargs)
    for value, what in ((width, 'width'), (num_shards, 'num_shards')):
      if value is not None and value < 1:
        raise ValueError(f'{self.name}: {what}={value}, but it is at least 1.')
    self.width = width
    self.initializer = keras.initializers.get(initializer)
    self.num_shards = num_shards
    self._shards: list[key_index.Shard] = []

  def build(self, input_shape: Any = None) -> None:
    """Makes the table's variables, in the scope of the current strategy."""
    del input_shape
    if self._shards:
      return
    extended_lib.register_with_keras()
    number = self.num_shards = self.num_shards or _num_ps(self.name)
    self._shards = [self._make_shard(i, number) for i in range(number)]
    self.built = True

  def lookup(self, keys: Any, *, training: bool = True) -> tf.Tensor:
    """Returns the rows of keys.

    Each key's row is transferred once, however often the key occurs.

    Args:
      keys: integers or strings, a tensor of any shape.
      training: whether keys that are new get a row. If not, no gradient
        reaches the table.

    Returns:
      Tensor of shape `keys.shape + [width]`.

    Raises:
      TypeError: the keys are of another type.
    """
    self.build()
    keys = _as_int64(tf.convert_to_tensor(keys), self.name)
    read = functools.partial(self._read, inserts=training)
    rows = reads.read_distinct(read, keys, tf.TensorShape([self.width]))
    return rows if training else tf.stop_gradient(rows)

  def call(self, keys: Any, training: bool = False) -> tf.Tensor:
    return self.lookup(keys, training=training)

  def num_keys(self) -> int:
    """Returns how many keys have a row.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    return sum(
      int(shard.counts.numpy()[0]) - key_index.NUM_INITIAL
      for shard in self._shards
    )

  def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
    return (*input_shape, self.width)

  def get_config(self) -> dict[str, Any]:
    return {
      **super().get_config(),
      'width': self.width,
      'initializer': keras.initializers.serialize(self.initializer),
      'num_shards': self.num_shards,
    }

  def _make_shard(self, index: int, num_shards: int) -> key_index.Shard:
    rows, keys, counts = weights = [
      self._make_rows(index),
      self._make_keys(index),
      self._make_counts(index, num_shards),
    ]
    for weight in weights:  # checkpoints contain what attributes are
      setattr(self, weight.name, weight)
    return key_index.Shard(
      _index_name(rows.value),
      rows.value,
      keys.value,
      counts.value,
      num_shards,
    )

  def _make_rows(self, index: int) -> keras.Variable:
    with growing.making(index):
      return self.add_weight(
        shape=(key_index.NUM_INITIAL, self.width),
        initializer=self.initializer,
        dtype=self.variable_dtype,
        name=f'rows_{index}',
      )

  def _make_keys(self, index: int) -> keras.Variable:
    with growing.making(index):
      return self.add_weight(
        shape=(key_index.NUM_INITIAL,),
        initializer='zeros',
        dtype='int64',
        trainable=False,
        name=f'keys_{index}',
      )

  def _make_counts(self, index: int, num_shards: int) -> keras.Variable:
    with growing.making(index, grows=False):
      return self.add_weight(
        shape=(key_index.NUM_COUNTS,),
        initializer=_Counts(num_shards),
        dtype='int64',
        trainable=False,
        name=f'counts_{index}',
      )

  def _read(self, keys: tf.Tensor, *, inserts: bool) -> tf.Tensor:
    """Returns the rows of different keys, of shape [n]."""
    number = len(self._shards)
    if number == 1:
      return _rows(self._shards[0], keys, inserts)
    places = key_index.shard_of(keys, number)
    order = tf.dynamic_partition(tf.range(tf.size(keys)), places, number)
    parts = tf.dynamic_partition(keys, places, number)
    rows = [
      _rows(shard, part, inserts)
      for shard, part in zip(self._shards, parts, strict=True)
    ]
    return tf.dynamic_stitch(order, rows)


class _Counts(keras.initializers.Initializer):
  """The counts of a shard that is empty."""

  def __init__(self, num_shards: int) -> None:
    self._num_shards = num_shards

  def __call__(self, shape: Any, dtype: Any = None) -> tf.Tensor:
    del shape
    return tf.constant(key_index.initial_counts(self._num_shards), dtype)


def _rows(shard: key_index.Shard, keys: tf.Tensor, inserts: bool) -> tf.Tensor:
  locate = functools.partial(shard.locate, inserts=inserts)
  reader = reads.reader()
  rows = reader and reader.read_keyed(shard.rows, keys, locate)
  if rows is not None:
    return rows
  with tf.device(shard.rows.device), reads.stop_recording():
    if tf.executing_eagerly():
      numbers = _eager_locate(shard, inserts)(keys)
    else:
      numbers = locate(keys)
    rows = tf.raw_ops.ResourceGather(
      resource=shard.rows.handle, indices=numbers, dtype=shard.rows.dtype
    )
  rows = tf.identity(rows)
  sparse_rows.noted_distinct(numbers)
  reads.note_rows(
    shard.rows,
    rows,
    lambda gradient: tf.IndexedSlices(tf.convert_to_tensor(gradient), numbers),
  )
  return rows


@functools.lru_cache(maxsize=1024)
def _eager_locate(shard: key_index.Shard, inserts: bool) -> Any:
  """Returns a function for eager mode: it takes a lock, which a graph does."""
  return tf.function(
    functools.partial(shard.locate, inserts=inserts),
    input_signature=[tf.TensorSpec([None], tf.int64)],
    autograph=False,
  )


def _as_int64(keys: tf.Tensor, name: str) -> tf.Tensor:
  if keys.dtype == tf.string:
    return tf.strings.to_hash_bucket_fast(keys, tf.int64.max)
  if keys.dtype.is_integer:
    return tf.cast(keys, tf.int64)
  raise TypeError(
    f'{name}: keys of type {keys.dtype.name}, but they are integers or '
    'strings. Cast them, if they are whole numbers.'
  )


def _num_ps(name: str) -> int:
  """Returns the number of ps; 1 without a strategy."""
  if not tf.distribute.has_strategy():
    return 1
  strategy = tf.distribute.get_strategy()
  ledger = getattr(strategy.extended, 'ledger', None)
  if ledger is None or not ledger.num_ps:
    raise ValueError(
      f'{name}: {type(strategy).__name__} has no ps of this package, which '
      'tables are kept on. Use tfps.ParameterServerStrategy or another '
      'strategy with ps.'
    )
  return ledger.num_ps


def _index_name(rows: Any) -> str:
  """Returns a name that no other table has, and that all processes know."""
  memory = getattr(handles.inner(rows), 'memory', None)
  if memory is None:  # the variable is private to this process
    return f'tfps/keys/{uuid.uuid4().hex}'
  return f'tfps/keys/{memory.container}/{memory.name}'
