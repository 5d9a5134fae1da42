"""Looks rows up in many ways, alone in a network that counts bytes as well.

Prints, as JSON, the bytes of a step for each way, or 'denied' if this user may
not make a network. Each step trains a table of which it needs few rows.

The arguments are the way to train, the number of shards, and the names of
lookups; by default all of them.
"""

import json
import sys

from tests.programs import count_bytes

ROWS, WIDTH, BATCH = 100_000, 16, 32
_STEPS = (8, 40)


def _layers():
  """Returns functions that look rows up in a Keras variable, by name."""
  import keras
  import tensorflow as tf

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
    return tf.RaggedTensor.from_tensor(tf.stack([ids, ids], axis=1))

  nn = tf.nn
  return {
    'take': lambda t, i: keras.ops.take(t, i, axis=0),
    'gather': tf.gather,
    'gather, 2 axes': lambda t, i: tf.gather(t, i[:, None])[:, 0],
    'gather of a value': lambda t, i: tf.gather(tf.convert_to_tensor(t), i),
    'gather of ragged': lambda t, i: tf.reduce_sum(tf.gather(t, ragged(i)), 1),
    'gather_nd': lambda t, i: tf.gather_nd(t, i[:, None]),
    'an index': lambda t, i: t[i[0]][None] + tf.zeros([tf.shape(i)[0], 1]),
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
    'cond': by_branch,
    'vectorized_map': lambda t, i: tf.vectorized_map(
      lambda each: tf.gather(t, each), i
    ),
    'tf.function': by_function,
  }


def _models():
  """Returns functions that make layers, by name."""
  import keras

  class Lookup(keras.layers.Layer):
    def __init__(self, look_up, **kwargs):
      super().__init__(**kwargs)
      self.look_up = look_up

    def build(self, shape):
      self.table = self.add_weight(
        shape=(ROWS, WIDTH), initializer=_start, name='table'
      )

    def call(self, ids):
      return self.look_up(self.table, ids)

    def compute_output_shape(self, shape):
      return (shape[0], WIDTH)

  def _start(shape, dtype=None):
    return keras.ops.ones(shape, dtype)

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
  made['Embedding, lora'] = embedding(lora_rank=2)
  return made


def main(kind: str, shards: int, *names: str) -> None:
  if not count_bytes.enter_a_network():
    print('denied')
    return
  import keras
  import tensorflow as tf

  import tfps

  def bytes_of(model, steps):
    ids = tf.data.Dataset.range(100, output_type=tf.int64)
    batches = ids.repeat().map(lambda i: (i * 7 % ROWS, [0.0])).batch(BATCH)
    begun = count_bytes.bytes_on_loopback()
    model.fit(batches.take(steps), verbose=0)
    return count_bytes.bytes_on_loopback() - begun

  def measure(make, cluster):
    partitioner = tfps.partitioners.FixedShards(shards) if shards > 1 else None
    strategy = getattr(tfps, kind)(cluster, partitioner)
    with strategy.scope():
      model = keras.Sequential(
        [keras.layers.Input((), dtype='int64'), make(), keras.layers.Dense(1)]
      )
      model.compile('sgd', 'mse', steps_per_execution=4)
    bytes_of(model, 4)
    few, many = (bytes_of(model, steps) for steps in _STEPS)
    return (many - few) // (_STEPS[1] - _STEPS[0])

  made = _models()
  found = {}
  for name in names or made:
    with tfps.testing.InProcessCluster(num_workers=1, num_ps=2) as cluster:
      try:
        found[name] = measure(made[name], cluster.cluster)
      except Exception as error:
        found[name] = f'{type(error).__name__}: {str(error)[-150:]}'
    print(name, found[name], file=sys.stderr, flush=True)
  print(json.dumps(found), flush=True)


if __name__ == '__main__':
  main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
