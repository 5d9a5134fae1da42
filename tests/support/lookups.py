"""Layers that look rows up in a large table, each in a way of its own."""

import keras
import tensorflow as tf

ROWS, WIDTH = 100_000, 16
NUM_BYTES = ROWS * WIDTH * 4


def _layers():
  """Returns functions that look rows up in a Keras variable, by name."""

  def by_map(table, ids):
    return tf.map_fn(
      lambda i: tf.gather(table, i), ids, fn_output_signature=tf.float32
    )

  def by_loop(table, ids):
    def body(i, total):
      return i + 1, total + tf.gather(
        table, (ids + tf.cast(i, ids.dtype)) % ROWS
      )

    zeros = tf.zeros([tf.shape(ids)[0], WIDTH])
    return tf.while_loop(lambda i, _: i < 3, body, (0, zeros))[1]

  def by_branch(table, ids):
    return tf.cond(
      tf.reduce_sum(ids) % 2 == 0,
      lambda: tf.gather(table, ids),
      lambda: 2.0 * tf.nn.embedding_lookup(table, ids),
    )

  def by_variable_in_loop(table, ids):
    return tf.map_fn(
      lambda i: tf.nn.embedding_lookup(table.value, i),
      ids,
      fn_output_signature=tf.float32,
    )

  def by_function(table, ids):
    return tf.function(lambda ids: tf.gather(table, ids))(ids)

  def sparse(ids):
    return tf.sparse.from_dense(tf.stack([ids + 1, ids], axis=1))

  def ragged(ids):
    return tf.RaggedTensor.from_tensor(tf.stack([ids + 1, ids], axis=1))

  nn = tf.nn
  return {
    'take': lambda t, i: keras.ops.take(t, i, axis=0),
    'gather': tf.gather,
    'gather, 2 axes': lambda t, i: tf.gather(t, i[:, None])[:, 0],
    'gather of a value': lambda t, i: tf.gather(tf.convert_to_tensor(t), i),
    'gather of ragged': lambda t, i: tf.reduce_sum(tf.gather(t, ragged(i)), 1),
    'gather_nd': lambda t, i: tf.gather_nd(t, i[:, None]),
    'embedding_lookup': nn.embedding_lookup,
    'with max_norm': lambda t, i: nn.embedding_lookup(t, i, max_norm=1.0),
    'of ragged': lambda t, i: tf.reduce_sum(
      nn.embedding_lookup(t, ragged(i)), 1
    ),
    'embedding_lookup_sparse': lambda t, i: nn.embedding_lookup_sparse(
      t.value, sparse(i), None, combiner='sum'
    ),
    'safe_embedding_lookup_sparse': lambda t, i: (
      nn.safe_embedding_lookup_sparse(t.value, sparse(i), combiner='mean')
    ),
    'take of ragged': lambda t, i: tf.reduce_sum(
      keras.ops.take(t, ragged(i), axis=0), 1
    ),
    'take of sparse': lambda t, i: tf.reduce_sum(
      keras.ops.take(t, sparse(i), axis=0), 1
    ),
    'map_fn': by_map,
    'a variable in map_fn': by_variable_in_loop,
    'while_loop': by_loop,
    'vectorized_map': lambda t, i: tf.vectorized_map(
      lambda each: tf.gather(t, each), i
    ),
    'cond': by_branch,
    'tf.function': by_function,
  }


class Lookup(keras.layers.Layer):
  """Looks rows up in a table of its own."""

  def __init__(self, look_up, **kwargs):
    super().__init__(**kwargs)
    self.look_up = look_up

  def build(self, shape):
    self.table = self.add_weight(
      shape=(ROWS, WIDTH), initializer='ones', name='table'
    )

  def call(self, ids):
    return self.look_up(self.table, ids)

  def compute_output_shape(self, shape):
    return (shape[0], WIDTH)


def _models():
  """Returns functions that make layers, by name."""

  def embedding(**kwargs):
    return lambda: keras.layers.Embedding(
      ROWS, WIDTH, embeddings_initializer='ones', **kwargs
    )

  made = {
    name: lambda look_up=look_up: Lookup(look_up)
    for name, look_up in _layers().items()
  }
  made['Embedding'] = embedding()
  made['Embedding, mask_zero'] = embedding(mask_zero=True)
  made['Embedding, float16'] = embedding(dtype='mixed_float16')
  made['gather, float16'] = lambda: Lookup(
    _layers()['gather'], dtype='mixed_float16'
  )
  made['Embedding, l2'] = embedding(embeddings_regularizer='l2')
  return made


_MODELS = _models()

NAMES = tuple(_MODELS)
# Like others in what they have TensorFlow do.
RARELY = (
  *('gather, 2 axes', 'gather of ragged', 'gather of a value', 'with max_norm'),
  *(
    'safe_embedding_lookup_sparse',
    'a variable in map_fn',
    'map_fn',
    'while_loop',
  ),
  *('Embedding', 'Embedding, mask_zero', 'Embedding, float16', 'of ragged'),
  *('take', 'take of sparse', 'gather_nd', 'embedding_lookup'),
  *('gather', 'tf.function', 'take of ragged', 'gather, float16'),
)


def layer(name):
  """Returns a new layer that looks rows up."""
  return _MODELS[name]()
