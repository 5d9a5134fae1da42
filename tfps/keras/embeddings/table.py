"""Table of embeddings that gets a row for each key it has not seen before."""

import functools
from typing import Any
import uuid

import keras
import tensorflow as tf

from tfps._compat import handles
from tfps._compat import keras_variables
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
  others, as if made lazy by `tfps.keras.optimizers.lazy`.

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
    self._made: list[tuple[keras.Variable, ...]] = []
    self._shards: list[key_index.Shard] = []

  def build(self, input_shape: Any = None) -> None:
    """Makes the table's variables, in the scope of the current strategy."""
    del input_shape
    if self._made:
      return
    extended_lib.register_with_keras()
    number = self.num_shards = self.num_shards or _num_ps(self.name)
    self._made = [self._make(index, number) for index in range(number)]
    self.built = True

  def lookup(self, keys: Any, *, training: bool | None = None) -> tf.Tensor:
    """Returns the rows of keys.

    Each key's row is transferred once, however often the key occurs.

    Args:
      keys: integers or strings, a tensor of any shape.
      training: whether keys that are new get a row. If not, no gradient
        reaches the table. By default they do where a `tf.GradientTape` records.

    Returns:
      Tensor of shape `keys.shape + [width]`.

    Raises:
      TypeError: the keys are of another type.
      RuntimeError: a graph is traced, and the table has not been built.
    """
    if not self._made and not tf.executing_eagerly():
      raise RuntimeError(
        f'{self.name}: looked up in a function, and not built. Call its '
        "build() in the strategy's scope, before steps."
      )
    self.build()
    keys = _as_int64(tf.convert_to_tensor(keys), self.name)
    if not self._have_values():  # only shapes matter yet
      shape = tf.concat([tf.shape(keys), [self.width]], axis=0)
      zeros = tf.zeros(shape, self.variable_dtype)
      return tf.ensure_shape(zeros, [*keys.shape, self.width])
    if training is None:
      training = reads.is_recording()
    read = functools.partial(self._read, inserts=training)
    rows = reads.read_distinct(read, keys, tf.TensorShape([self.width]))
    return rows if training else tf.stop_gradient(rows)

  def call(self, keys: Any, training: bool | None = None) -> tf.Tensor:
    return self.lookup(keys, training=training)

  def num_keys(self) -> int:
    """Returns how many keys have a row.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    return sum(
      int(counts.numpy()[0]) - key_index.NUM_INITIAL
      for _, _, counts in self._made
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

  def _make(self, index: int, num_shards: int) -> tuple[keras.Variable, ...]:
    """Makes the rows, keys and counts of a shard."""
    number = key_index.NUM_INITIAL
    weights = (
      self.add_weight(
        shape=(number, self.width),
        initializer=_Placed(self.initializer, index, grows=True),
        dtype=self.variable_dtype,
        name=f'rows_{index}',
      ),
      self.add_weight(
        shape=(number,),
        initializer=_Placed(keras.initializers.Zeros(), index, grows=True),
        dtype='int64',
        trainable=False,
        name=f'keys_{index}',
      ),
      self.add_weight(
        shape=(key_index.NUM_COUNTS,),
        initializer=_Placed(_Counts(num_shards), index, grows=False),
        dtype='int64',
        trainable=False,
        name=f'counts_{index}',
      ),
    )
    for weight in weights:  # checkpoints contain what attributes are
      setattr(self, weight.name, weight)
    return weights

  def _have_values(self) -> bool:
    """Returns whether there are shards, after making them if there may be."""
    if self._shards:
      return True
    values = [
      [keras_variables.value_of(weight) for weight in weights]
      for weights in self._made
    ]
    if any(value is None for shard in values for value in shard):
      return False
    self._shards = [
      key_index.Shard(_index_name(rows), rows, keys, counts, len(values))
      for rows, keys, counts in values
    ]
    return True

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


class _Placed(keras.initializers.Initializer):
  """Initializer of a variable that is made on a ps of one's choice."""

  def __init__(self, initializer: Any, index: int, *, grows: bool) -> None:
    self._initializer = initializer
    self._index = index
    self._grows = grows

  def __call__(self, shape: Any, dtype: Any = None) -> Any:
    return self._initializer(shape, dtype=dtype)

  def tfps_making(self) -> Any:
    """Returns the context in which the variable is made."""
    return growing.making(self._index, grows=self._grows)


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


def _as_int64(keys: tf.Tensor, name: str) -> tf.Tensor:
  if keys.dtype == tf.string:
    return tf.strings.to_hash_bucket_fast(keys, tf.int64.max)
  if keys.dtype.is_integer:
    return tf.cast(keys, tf.int64)
  raise TypeError(
    f'{name}: keys of type {keys.dtype.name}, but they are integers or '
    'strings. A model without an input of such a type, as '
    "keras.Input(shape, dtype='int64'), makes all input float32, which lacks "
    'most large numbers.'
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
