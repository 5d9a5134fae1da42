"""Keras layer of embeddings keyed by any id."""

from typing import Any

import keras
import tensorflow as tf

from tfps.keras.embeddings import keys as keys_lib
from tfps.keras.embeddings import table as table_lib

_COMBINERS = ('sum', 'mean', 'sqrtn')


@keras.saving.register_keras_serializable('tfps')
class Embedding(keras.layers.Layer):
  """Layer that turns integers or strings of any value into dense vectors.

  It is like `keras.layers.Embedding`, but needs neither the number of ids nor a
  vocabulary: an id gets a row of the table when it is first trained on; see
  `Table`. To share a table among features, call the layer on each of them, or
  give layers the same `table`. With `num_features`, they share it and have rows
  of their own, which takes much less time than a table for each.

  ```
  user = keras.Input((), dtype='string')
  vector = tfps.embeddings.Embedding(16)(user)  # [batch, 16]
  tags = keras.Input((None,), dtype='int64', ragged=True)
  mean = tfps.embeddings.Embedding(16, combiner='mean')(tags)  # [batch, 16]
  columns = keras.Input((26,), dtype='int64')
  vectors = tfps.embeddings.Embedding(16, num_features=26)(columns)
  # [batch, 26, 16], where an id of two columns has two rows
  ```

  Args:
    output_dim: number of elements of a vector.
    embeddings_initializer: Keras initializer of the vectors.
    combiner: 'sum', 'mean' or 'sqrtn' combines the vectors of the last axis of
      ids into one, as `tf.nn.embedding_lookup_sparse` does, weighted if weights
      are given; zeros where there are none. None keeps them apart.
    mask_zero: whether the id 0, or the empty string, is padding: later layers
      mask it, and a combiner leaves it out.
    num_features: length of the second axis of ids, along which are features
      that share the table: an id has a row of its own for each of them. Its key
      in the table is id * m + feature, modulo 2**64, where m is `num_features`,
      or the next number if that is even. Ids of one feature never have the same
      key; those of two features can only if m times one exceeds 63 bits: of
      10^8 such ids, any two with a probability of 1 in 3,700. By default equal
      ids have one row.
    admission: see `Table`.
    eviction: see `Table`.
    storage: see `Table`.
    num_shards: see `Table`.
    table: the table to look ids up in; by default the layer makes its own.
    **kwargs: as for `keras.layers.Layer`.

  Raises:
    ValueError: the combiner is unknown, the number of features is not positive,
      the table has another width, or what is the table's own is given beside
      it.
  """

  def __init__(
    self,
    output_dim: int,
    embeddings_initializer: Any = 'uniform',
    *,
    combiner: str | None = None,
    mask_zero: bool = False,
    num_features: int | None = None,
    admission: Any = None,
    eviction: Any = None,
    storage: Any = None,
    num_shards: int | None = None,
    table: table_lib.Table | None = None,
    **kwargs: Any,
  ) -> None:
    super().__init__(**kwargs)
    if combiner is not None and combiner not in _COMBINERS:
      raise ValueError(
        f'{self.name}: combiner={combiner!r} is none of {_COMBINERS}.'
      )
    if num_features is not None and num_features < 1:
      raise ValueError(
        f'{self.name}: num_features={num_features}, but it is at least 1.'
      )
    if table is not None and table.width != output_dim:
      raise ValueError(
        f'{self.name}: output_dim={output_dim}, but rows of the table '
        f'{table.label} have {table.width} elements.'
      )
    if table is not None:
      _check_free(
        self.name,
        admission=admission,
        eviction=eviction,
        storage=storage,
        num_shards=num_shards,
      )
    self.output_dim = output_dim
    self.combiner = combiner
    self.mask_zero = mask_zero
    self.num_features = num_features
    self.supports_masking = mask_zero
    self._is_shared = table is not None
    if table is None:
      table = table_lib.Table(
        output_dim,
        embeddings_initializer,
        admission=admission,
        eviction=eviction,
        storage=storage,
        num_shards=num_shards,
        dtype=self.dtype_policy,
        name='table',
      )
      table.label = self.name
    self.table = table

  def build(self, input_shape: Any = None) -> None:
    """Makes the table's variables, if it has none yet."""
    del input_shape
    self.table.build()
    self.built = True

  def call(
    self, inputs: Any, weights: Any = None, training: bool | None = None
  ) -> Any:
    """Returns the vectors of ids.

    Args:
      inputs: ids, a dense tensor of any shape, or a `tf.RaggedTensor` or
        `tf.SparseTensor` of shape [batch, None]; a combiner combines the last
        axis of more ragged ones, too. With `num_features`, dense
        ids of shape [batch, num_features, ...], sparse ones of shape [batch,
        num_features], or ragged ones of shape [batch, num_features, None].
      weights: a factor for each id, in the same form; needs a combiner.
      training: whether new ids get rows in the table; by default they do where
        a `tf.GradientTape` records. They never do in a layer that is not
        `trainable`.

    Returns:
      Tensor of shape `inputs.shape + [output_dim]`; with a combiner, without
      the last axis of `inputs`. Ragged ids without a combiner give a
      `tf.RaggedTensor`.

    Raises:
      ValueError: sparse ids or weights are given without a combiner, dense ids
        with a combiner have no axis to combine, or ids have another number of
        features.
    """
    if not isinstance(inputs, tf.RaggedTensor | tf.SparseTensor):
      inputs = tf.convert_to_tensor(inputs)
    keys = inputs
    if self.num_features is not None:
      keys = keys_lib.of_features(inputs, self.num_features, self.name)
    if self.combiner is None:
      return self._look_up(keys, weights, training)
    factors = self._factors(_flat(inputs), _flat(weights))
    if isinstance(keys, tf.RaggedTensor):
      return self._combine_ragged(keys, factors, training)
    if isinstance(keys, tf.SparseTensor):
      segments, number = keys.indices[:, 0], keys.dense_shape[0]
      return self._combine(keys.values, factors, segments, number, training)
    return self._combine_dense(keys, factors, training)

  def compute_mask(self, inputs: Any, previous: Any = None) -> Any:
    del previous
    if not self.mask_zero or self.combiner is not None:
      return None
    return IsGiven()(inputs)

  def compute_output_shape(self, input_shape: Any, *args: Any) -> Any:
    shape = tuple(input_shape)
    return (*(shape if self.combiner is None else shape[:-1]), self.output_dim)

  def get_config(self) -> dict[str, Any]:
    """Returns the arguments of the layer.

    Raises:
      ValueError: the table is shared by an argument.
    """
    if self._is_shared:
      raise ValueError(
        f'{self.name}: a layer that was given a table cannot be saved with its '
        'model, which would not share the table any more. Call one layer for '
        'all features, or save weights only.'
      )
    config = self.table.get_config()
    return {
      **super().get_config(),
      'output_dim': self.output_dim,
      'embeddings_initializer': config['initializer'],
      'combiner': self.combiner,
      'mask_zero': self.mask_zero,
      'num_features': self.num_features,
      'admission': config['admission'],
      'eviction': config['eviction'],
      'storage': config['storage'],
      'num_shards': config['num_shards'],
    }

  def _look_up(self, keys: Any, weights: Any, training: bool | None) -> Any:
    if weights is not None or isinstance(keys, tf.SparseTensor):
      what = 'sparse ids' if weights is None else 'weights'
      raise ValueError(
        f'{self.name}: {what} are given, but no combiner. Set combiner to one '
        f'of {_COMBINERS}.'
      )
    if isinstance(keys, tf.RaggedTensor):
      rows = self._rows(keys.flat_values, training)
      return keys.with_flat_values(rows)
    return self._rows(keys, training)

  def _rows(self, keys: Any, training: bool | None) -> tf.Tensor:
    rows = self.table.lookup(keys, training=training)
    return tf.cast(rows, self.compute_dtype)

  def _factors(self, ids: tf.Tensor, weights: Any) -> Any:
    """Returns what each vector is multiplied by, `[n]`, or None.

    Args:
      ids: of the vectors, `[n]`.
      weights: that were given for them, or None.
    """
    if weights is not None:
      weights = tf.cast(weights, self.compute_dtype)
    if not self.mask_zero:
      return weights
    given = tf.cast(IsGiven()(ids), self.compute_dtype)
    return given if weights is None else weights * given

  def _combine_ragged(
    self, keys: tf.RaggedTensor, factors: Any, training: bool | None
  ) -> Any:
    last = keys
    while last.ragged_rank > 1:
      last = last.values
    segments, number = last.value_rowids(), last.nrows()
    combined = self._combine(last.values, factors, segments, number, training)
    if self.num_features is not None:
      return tf.reshape(combined, [-1, self.num_features, self.output_dim])
    return _with_last(keys, combined)

  def _combine_dense(
    self, keys: tf.Tensor, factors: Any, training: bool | None
  ) -> tf.Tensor:
    if not keys.shape.rank:
      raise ValueError(
        f'{self.name}: ids of shape {keys.shape} have no axis to combine. '
        'Leave the combiner out.'
      )
    shape, length = tf.shape(keys), tf.shape(keys)[-1]
    number = tf.reduce_prod(shape[:-1])
    segments = tf.repeat(tf.range(number), length)
    combined = self._combine(_flat(keys), factors, segments, number, training)
    full = tf.concat([shape[:-1], [self.output_dim]], axis=0)
    return tf.ensure_shape(
      tf.reshape(combined, full), [*keys.shape[:-1], self.output_dim]
    )

  def _combine(
    self,
    keys: tf.Tensor,
    factors: Any,
    segments: tf.Tensor,
    number: tf.Tensor,
    training: bool | None,
  ) -> tf.Tensor:
    """Combines the vectors of `keys`, which belong to sorted `segments`."""
    rows = self._rows(keys, training)
    if factors is not None:
      rows *= factors[:, tf.newaxis]
    total = tf.math.unsorted_segment_sum(rows, segments, number)
    if self.combiner == 'sum':
      return total
    if factors is None:
      factors = tf.ones_like(keys, rows.dtype)
    if self.combiner == 'sqrtn':
      factors = tf.square(factors)
    below = tf.math.unsorted_segment_sum(factors, segments, number)
    if self.combiner == 'sqrtn':
      below = tf.sqrt(below)
    return tf.math.divide_no_nan(total, below[:, tf.newaxis])


@keras.saving.register_keras_serializable('tfps')
class IsGiven(keras.Operation):
  """Operation that returns which ids are no padding: neither 0 nor empty.

  That of Keras takes no strings.
  """

  def call(self, ids: Any) -> Any:
    padding = tf.constant('' if ids.dtype == tf.string else 0, ids.dtype)
    return tf.not_equal(ids, padding)

  def compute_output_spec(self, ids: keras.KerasTensor) -> keras.KerasTensor:
    return keras.KerasTensor(ids.shape, 'bool')


def _check_free(name: str, **arguments: Any) -> None:
  """Refuses arguments of a table where one is given that is made already."""
  for argument, value in arguments.items():
    if value is not None:
      raise ValueError(
        f'{name}: {argument}={value} is given beside a table, which has its '
        'own. Give it to the table.'
      )


def _flat(values: Any) -> Any:
  """Returns ids or weights as a tensor of shape [n], or None."""
  if isinstance(values, tf.RaggedTensor):
    return values.flat_values
  if isinstance(values, tf.SparseTensor):
    return values.values
  return None if values is None else tf.reshape(values, [-1])


def _with_last(ids: tf.RaggedTensor, vectors: tf.Tensor) -> Any:
  """Returns ragged ids with vectors in place of the last ragged axis."""
  if ids.ragged_rank == 1:
    return vectors
  return ids.with_values(_with_last(ids.values, vectors))
