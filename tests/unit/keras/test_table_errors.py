"""What a table that grows refuses, in a process without servers."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps
import tfps.keras
from tfps.server import row_file


class Own(keras.optimizers.Optimizer):
  """An optimizer that tfps does not know."""

  def update_step(self, gradient, variable, learning_rate):
    variable.assign_sub(learning_rate * gradient)


def _train(optimizer, *keys):
  table = tfps.embeddings.Table(2, name='keyed')
  with tf.GradientTape() as tape:
    vectors = table.lookup(keys)
  gradients = tape.gradient(vectors, table.trainable_variables)
  optimizer.apply(gradients, table.trainable_variables)


@pytest.mark.parametrize(
  ('optimizer', 'complaint'),
  [
    (
      keras.optimizers.SGD(0.1, use_ema=True, name='averages'),
      r'^averages: use_ema does not work with rows_0, .*Leave it out',
    ),
    (
      keras.optimizers.SGD(0.1, gradient_accumulation_steps=2, name='adds'),
      r'^adds: gradient_accumulation_steps does not .*updates\.Accumulate',
    ),
    (
      Own(0.1),
      r'^own: Own cannot update keyed/rows_0.* only SGD, .* one of these',
    ),
  ],
  ids=lambda value: value.name if hasattr(value, 'name') else '',
)
def test_an_optimizer_that_cannot_train_it_is_named(optimizer, complaint):
  with pytest.raises(ValueError, match=complaint):
    _train(optimizer, 1)


def test_slots_of_other_keys_are_refused():
  optimizer, other = (keras.optimizers.Adagrad(0.1) for _ in range(2))
  _train(optimizer, 1, 2)
  saved = {}
  optimizer.save_own_variables(saved)
  _train(other, 7)
  with pytest.raises(
    ValueError, match=r'accumulator.* of the 2 keys .* Restore the table, too'
  ):
    other.load_own_variables(saved)


def test_a_table_is_loaded_by_the_model_that_was_saved():
  table = tfps.embeddings.Table(2, name='built')
  table.lookup([1], training=True)
  with pytest.raises(ValueError, match=r'^built: no table was saved .* Load'):
    table.load_own_variables({})
  saved = {}
  table.save_own_variables(saved)
  other = tfps.embeddings.Table(2, name='unbuilt')
  with pytest.raises(ValueError, match=r'^unbuilt: .* built\. Call the model'):
    other.load_own_variables(saved)


def _fail(*_):
  raise ValueError('The disk is full.')


def test_a_full_disk_brings_no_evicted_key_back(tmp_path, monkeypatch):
  table = tfps.embeddings.Table(
    2,
    'zeros',
    eviction=tfps.embeddings.Lru(8),
    storage=tfps.embeddings.Storage(1, tmp_path),
  )
  optimizer = keras.optimizers.SGD(1.0)

  def train(keys):
    with tf.GradientTape() as tape:
      vectors = table.lookup(keys)
    gradients = tape.gradient(vectors, table.trainable_variables)
    optimizer.apply(gradients, table.trainable_variables)

  def contents():
    return {
      key: row[0]
      for keys, rows in table.items()
      for key, row in zip(keys.tolist(), rows.tolist(), strict=True)
    }

  train(np.arange(8))
  train(np.arange(8, 16))  # evicts keys, whose rows are to be given again
  before = contents()
  assert len(before) == table.num_keys() == 8
  with monkeypatch.context() as patch:
    patch.setattr(row_file.RowFile, 'fit', _fail)
    with pytest.raises(tf.errors.InvalidArgumentError, match='disk is full'):
      train(np.arange(100, 5000))
  assert contents() == before
  assert table.num_keys() == 8
  for _ in range(2):
    train(np.arange(20, 28))
  assert contents() == dict.fromkeys(range(20, 28), -2.0)


_LOOPS = {
  'while': lambda look_up, keys: tf.while_loop(
    lambda i, _: i < 3,
    lambda i, total: (i + 1, total + tf.reduce_sum(look_up(keys[i]))),
    [tf.constant(0), tf.constant(0.0)],
  )[1],
  'map': lambda look_up, keys: tf.map_fn(
    look_up, keys, fn_output_signature=tf.float32
  ),
  'branch in a loop': lambda look_up, keys: tf.map_fn(
    lambda key: tf.cond(key[0] > 0, lambda: look_up(key), lambda: look_up(key)),
    keys,
    fn_output_signature=tf.float32,
  ),
}


def _table():
  table = tfps.embeddings.Table(2, 'zeros', name='keyed')
  table.build()
  optimizer = keras.optimizers.SGD(1.0)
  optimizer.build(table.trainable_variables)
  return table, optimizer


@pytest.mark.parametrize('loop', _LOOPS)
def test_a_gradient_through_a_loop_is_refused(loop):
  table, optimizer = _table()
  keys = tf.constant([[1, 2], [2, 3], [2, 9]], tf.int64)

  @tf.function
  def step():
    with tf.GradientTape() as tape:
      loss = -tf.reduce_sum(_LOOPS[loop](table.lookup, keys))
    gradients = tape.gradient(loss, table.trainable_variables)
    optimizer.apply(gradients, table.trainable_variables)

  with pytest.raises(ValueError, match=r'keyed/rows_0.*before the loop'):
    step()


@pytest.mark.parametrize('has_branch', [False, True])
def test_a_tape_in_a_loop_trains_a_table(has_branch):
  table, optimizer = _table()
  keys = tf.constant([[1, 2], [2, 3], [2, 9]], tf.int64)

  def look_up(keys):
    if not has_branch:
      return table.lookup(keys)
    return tf.cond(
      keys[0] > 1, lambda: table.lookup(keys), lambda: 2 * table.lookup(keys)
    )

  @tf.function
  def train():
    for i in tf.range(3):
      with tf.GradientTape() as tape:
        loss = -tf.reduce_sum(look_up(keys[i]))
      gradients = tape.gradient(loss, table.trainable_variables)
      optimizer.apply(gradients, table.trainable_variables)

  train()
  factor = 2.0 if has_branch else 1.0
  np.testing.assert_array_equal(
    table.lookup([1, 2, 3, 9])[:, 0], [factor, 2 + factor, 1, 1]
  )
