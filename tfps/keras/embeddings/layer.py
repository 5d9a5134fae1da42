"""Keras layer of embeddings keyed by any id."""

from typing import Any

import keras
import tensorflow as tf

from tfps.keras.embeddings import table as table_lib

_COMBINERS = ('sum', 'mean', 'sqrtn')


@keras.saving.register_keras_serializable('tfps')
class Embedding(keras.layers.Layer):
  """Layer that turns integers or strings of any value into dense vectors.

  It is like `keras.layers.Embedding`, but needs neither the number of ids nor a
  vocabulary: an id gets a row of the table when it is first trained on; see
  `Table`. To share a table among features, call the layer on each of them, or
  give layers the same `table`.

  ```
  user = keras.Input((), dtype='string')
  vector = tfps.embeddings.Embedding(16)(user)  # [batch, 16]
  tags = keras.Input((None,), dtype='int64', ragged=True)
  mean = tfps.embeddings.Embedding(16, combiner='mean')(tags)  # [batch, 16]
  ```

  Args:
    output_dim: number of elements of a vector.
    embeddings_initializer: Keras initializer of the vectors.
    combiner: 'sum', 'mean' or 'sqrtn' combines the vectors of the last axis of
      ids into one, as `tf.nn.embedding_lookup_sparse` does, weighted if weights
      are given; zeros where there are none. None keeps them apart.
    mask_zero: whether the id 0, or the empty string, is padding: later layers
      mask it, and a combiner leaves it out.
    admission: see `Table`.
    eviction: see `Table`.
    storage: see `Table`.
    num_shards: see `Table`.
    table: the table to look ids up in; by default the layer makes its own.
    **kwargs: as for `keras.layers.Layer`.

  Raises:
    ValueError: the combiner is unknown, the table has another width, or what is
      the table's own is given beside it.
  """

  def __init__(
    self,
    output_dim: int,
    embeddings_initializer: Any = 'uniform',
    *,
    combiner: str | None = None,
    mask_zero: bool = False,
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
    if table is not None and table.width != output_dim:
      raise ValueError(
        f'{self.name}: output_dim={output_dim}, but rows of the table '
        f'{table.name} have {table.width} elements.'
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
        `tf.SparseTensor` of shape [batch, None].
      weights: a factor for each id, in the same form; needs a combiner.
      training: whether new ids get rows in the table; by default they do where
        a `tf.GradientTape` records.

    Returns:
      Tensor of shape `inputs.shape + [output_dim]`; with a combiner, without
      the last axis of `inputs`. Ragged ids without a combiner give a
      `tf.RaggedTensor`.

    Raises:
      ValueError: sparse ids or weights are given without a combiner, or dense
        ids with a combiner have no axis to combine.
    """
    if self.combiner is None:
      return self._look_up(inputs, weights, training)
    if isinstance(inputs, tf.RaggedTensor):
      return self._combine(
        inputs.values,
        inputs.value_rowids(),
        inputs.nrows(),
        _flat(weights),
        training,
      )
    if isinstance(inputs, tf.SparseTensor):
      return self._combine(
        inputs.values,
        inputs.indices[:, 0],
        inputs.dense_shape[0],
        _flat(weights),
        training,
      )
    return self._combine_dense(tf.convert_to_tensor(inputs), weights, training)

  def compute_mask(self, inputs: Any, previous: Any = None) -> Any:
    del previous
    if not self.mask_zero or self.combiner is not None:
      return None
    return _is_given(inputs)

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
      'admission': config['admission'],
      'eviction': config['eviction'],
      'storage': config['storage'],
      'num_shards': config['num_shards'],
    }

  def _look_up(self, inputs: Any, weights: Any, training: bool | None) -> Any:
    if weights is not None or isinstance(inputs, tf.SparseTensor):
      what = 'sparse ids' if weights is None else 'weights'
      raise ValueError(
        f'{self.name}: {what} are given, but no combiner. Set combiner to one '
        f'of {_COMBINERS}.'
      )
    if isinstance(inputs, tf.RaggedTensor):
      rows = self._rows(inputs.flat_values, training)
      return inputs.with_flat_values(rows)
    return self._rows(inputs, training)

  def _rows(self, keys: Any, training: bool | None) -> tf.Tensor:
    rows = self.table.lookup(keys, training=training)
    return tf.cast(rows, self.compute_dtype)

  def _combine_dense(
    self, ids: tf.Tensor, weights: Any, training: bool | None
  ) -> tf.Tensor:
    if not ids.shape.rank:
      raise ValueError(
        f'{self.name}: ids of shape {ids.shape} have no axis to combine. Leave '
        'the combiner out.'
      )
    shape, length = tf.shape(ids), tf.shape(ids)[-1]
    number = tf.size(ids) // tf.maximum(length, 1)
    combined = self._combine(
      tf.reshape(ids, [-1]),
      tf.repeat(tf.range(number), length),
      number,
      _flat(weights),
      training,
    )
    full = tf.concat([shape[:-1], [self.output_dim]], axis=0)
    return tf.ensure_shape(
      tf.reshape(combined, full), [*ids.shape[:-1], self.output_dim]
    )

  def _combine(
    self,
    ids: tf.Tensor,
    segments: tf.Tensor,
    number: tf.Tensor,
    weights: Any,
    training: bool | None,
  ) -> tf.Tensor:
    """Combines the vectors of `ids`, which belong to sorted `segments`."""
    rows = self._rows(ids, training)
    if self.mask_zero:
      given = tf.cast(_is_given(ids), rows.dtype)
      weights = (
        given if weights is None else tf.cast(weights, rows.dtype) * given
      )
    if weights is not None:
      weights = tf.cast(weights, rows.dtype)
      rows *= weights[:, tf.newaxis]
    total = tf.math.unsorted_segment_sum(rows, segments, number)
    if self.combiner == 'sum':
      return total
    if weights is None:
      weights = tf.ones_like(ids, rows.dtype)
    if self.combiner == 'sqrtn':
      weights = tf.square(weights)
    below = tf.math.unsorted_segment_sum(weights, segments, number)
    if self.combiner == 'sqrtn':
      below = tf.sqrt(below)
    return tf.math.divide_no_nan(total, below[:, tf.newaxis])


def _check_free(name: str, **arguments: Any) -> None:
  """Refuses arguments of a table where one is given that is made already."""
  for argument, value in arguments.items():
    if value is not None:
      raise ValueError(
        f'{name}: {argument}={value} is given beside a table, which has its '
        'own. Give it to the table.'
      )


def _is_given(ids: Any) -> Any:
  padding = tf.constant('' if ids.dtype == tf.string else 0, ids.dtype)
  return tf.not_equal(ids, padding)


def _flat(weights: Any) -> Any:
  """Returns weights as a tensor of shape [number of ids], or None."""
  if isinstance(weights, tf.RaggedTensor):
    return weights.flat_values
  if isinstance(weights, tf.SparseTensor):
    return weights.values
  return None if weights is None else tf.reshape(weights, [-1])
