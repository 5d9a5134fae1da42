import numpy as np
import pytest
import tensorflow as tf

from tfps.variables import sharded

ROWS, COLUMNS = 10, 3
VALUES = np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)
DISORDER = [9, 0, 4, 4, 3, 9, 1]


def make(num_shards=3, values=VALUES):
  rows = np.array_split(values, num_shards)
  return sharded.ShardedVariable(
    [tf.Variable(part, name=f'table/part_{i}') for i, part in enumerate(rows)],
    name='table',
  )


@pytest.fixture
def table():
  return make()


def dense(gradient):
  return tf.convert_to_tensor(gradient).numpy()


@pytest.mark.parametrize('read', ['eager', 'function'])
@pytest.mark.parametrize(
  'indices',
  [[], [7], DISORDER, [[1, 9], [9, 2]], np.int64(5), np.array([[[3]]])],
  ids=str,
)
def test_sparse_read_keeps_order_and_duplicates(table, indices, read):
  indices = tf.cast(tf.constant(indices), tf.int64)
  run = {'eager': lambda f: f, 'function': tf.function}[read]
  rows = run(table.sparse_read)(indices)
  np.testing.assert_array_equal(rows, VALUES[indices.numpy()])
  assert rows.shape == [*indices.shape, COLUMNS]


LOOKUPS = {
  'v2': tf.nn.embedding_lookup,
  'v1': tf.compat.v1.nn.embedding_lookup,
  'gather': tf.gather,
  'sparse_read': lambda table, ids: table.sparse_read(ids),
}


@pytest.mark.parametrize('lookup', LOOKUPS.values(), ids=LOOKUPS)
def test_lookups_find_the_rows_asked_for(table, lookup):
  np.testing.assert_array_equal(lookup(table, DISORDER), VALUES[DISORDER])
  in_function = tf.function(lambda: lookup(table, tf.constant(DISORDER)))
  np.testing.assert_array_equal(in_function(), VALUES[DISORDER])


@pytest.mark.parametrize('run', [lambda f: f, tf.function], ids=['eager', 'fn'])
@pytest.mark.parametrize(
  'at',
  [
    lambda n: n(7),
    lambda n: n(-1),
    lambda n: (n(4), 1),
    lambda n: (n(4), slice(None, n(2))),
    lambda n: slice(n(2), n(8), 3),
    lambda n: (slice(1, None), n(2)),
    lambda n: (..., n(0)),
    lambda n: (3, n(1)),
  ],
)
def test_an_index_may_have_tensors(table, run, at):
  np.testing.assert_array_equal(
    run(lambda: table[at(tf.constant)])(), VALUES[at(int)]
  )


def test_lookup_clips_to_max_norm(table):
  expected = tf.nn.embedding_lookup(tf.constant(VALUES), DISORDER, max_norm=2.0)
  rows = tf.nn.embedding_lookup(table, DISORDER, max_norm=2.0)
  np.testing.assert_allclose(rows, expected, rtol=1e-6)


def test_sparse_lookups_combine_rows(table):
  ids = tf.sparse.from_dense([[3, 9, 0], [0, 0, 7]])
  combined = tf.nn.safe_embedding_lookup_sparse(table, ids, combiner='sum')
  expected = [VALUES[3] + VALUES[9], VALUES[7]]
  np.testing.assert_allclose(combined, expected)


_SPARSE_IDS = tf.sparse.from_dense(
  tf.constant([[3, 9, 3], [0, 7, 0]], tf.int64)
)
_WEIGHTS = tf.sparse.from_dense([[1.0, 2.0, 3.0], [0.0, 0.5, 0.0]])
_RAGGED_IDS = tf.ragged.constant([[3, 9, 3], [7]])
_LABELS = tf.constant([[3], [9]], tf.int64)
COMBINED = {
  'sparse': lambda t: tf.nn.embedding_lookup_sparse(t, _SPARSE_IDS, None),
  'weighted': lambda t: tf.nn.embedding_lookup_sparse(
    t, _SPARSE_IDS, _WEIGHTS, combiner='sqrtn'
  ),
  'clipped': lambda t: tf.nn.embedding_lookup_sparse(
    t, _SPARSE_IDS, None, combiner='sum', max_norm=2.0
  ),
  'ragged': lambda t: tf.nn.embedding_lookup_sparse(t, _RAGGED_IDS, None),
  'a list': lambda t: tf.nn.embedding_lookup_sparse([t], _SPARSE_IDS, None),
  'safe': lambda t: tf.nn.safe_embedding_lookup_sparse(t, _SPARSE_IDS),
  'sampled softmax': lambda t: tf.nn.sampled_softmax_loss(
    t, tf.zeros(len(VALUES)), _LABELS, VALUES[:2], 2, len(VALUES), seed=1
  ),
}


@pytest.mark.parametrize('lookup', COMBINED.values(), ids=COMBINED)
def test_combined_lookups_read_rows_alone(table, lookup):
  tf.random.set_seed(1)
  expected = lookup(tf.constant(VALUES))
  tf.random.set_seed(1)
  np.testing.assert_allclose(lookup(table), expected, rtol=1e-6)
  function = tf.function(lambda: lookup(table)).get_concrete_function()
  kinds = {operation.type for operation in function.graph.get_operations()}
  assert 'ResourceGather' in kinds
  assert 'ReadVariableOp' not in kinds


@pytest.mark.parametrize(
  'lookup',
  [
    lambda parts: tf.nn.embedding_lookup(parts, [1, len(VALUES) + 1]),
    lambda parts: tf.compat.v1.nn.embedding_lookup(parts, [2, 3]),
    lambda parts: tf.nn.embedding_lookup_sparse(parts, _SPARSE_IDS, None),
  ],
  ids=['v2', 'v1', 'sparse'],
)
def test_a_list_of_several_has_parts_of_the_rows(table, lookup):
  expected = lookup([tf.constant(VALUES), tf.constant(VALUES)[::-1]])
  other = sharded.ShardedVariable([tf.Variable(VALUES[::-1])])
  np.testing.assert_array_equal(lookup([table, other]), expected)


@pytest.mark.parametrize(
  'name', ['sparse', 'weighted', 'clipped', 'ragged', 'safe']
)
def test_the_gradient_of_a_combined_lookup_is_sparse(table, name):
  found = []
  for variable in (table, tf.Variable(VALUES)):
    with tf.GradientTape() as tape:
      loss = tf.reduce_sum(tf.square(COMBINED[name](variable)))
    found.append(tape.gradient(loss, variable))
  assert isinstance(found[0], tf.IndexedSlices)
  assert set(found[0].indices.numpy()) == {3, 7, 9}
  np.testing.assert_allclose(*map(dense, found), rtol=1e-5)


def loss_dense(table):
  return tf.reduce_sum(tf.square(table))


def loss_sparse(table):
  return tf.reduce_sum(tf.square(tf.nn.embedding_lookup(table, DISORDER)))


def loss_mixed(table):
  return loss_dense(table) + loss_sparse(table)


def loss_in_loop(table):
  total = 0.0
  for row in tf.constant(DISORDER):
    total += tf.reduce_sum(tf.square(table.sparse_read(row[tf.newaxis])))
  return total


def loss_in_cond(table):
  return tf.cond(
    tf.reduce_sum(table[0]) < 100.0,
    lambda: loss_mixed(table),
    lambda: 0.0 * loss_dense(table),
  )


def loss_of_one_shard(table):
  return tf.reduce_sum(tf.square(table[1:3]))


def loss_of_rows_of_one_shard(table):
  if isinstance(table, sharded.ShardedVariable):
    table = table.variables[0]
  return tf.reduce_sum(tf.square(table.sparse_read([2, 0])))


def loss_of_one_row(table):
  return tf.reduce_sum(tf.square(table[tf.constant(4)]))


LOSSES = {
  'one row': loss_of_one_row,
  'one shard': loss_of_one_shard,
  'rows of one shard': loss_of_rows_of_one_shard,
  'dense': loss_dense,
  'sparse': loss_sparse,
  'mixed': loss_mixed,
  'loop': loss_in_loop,
  'cond': loss_in_cond,
}


@pytest.mark.parametrize('run', [lambda f: f, tf.function], ids=['eager', 'fn'])
@pytest.mark.parametrize('loss', LOSSES.values(), ids=LOSSES)
def test_gradients_are_those_of_one_variable(table, loss, run):
  def gradient(variable):
    def compute():
      with tf.GradientTape() as tape:
        value = loss(variable)
      return tape.gradient(value, variable)

    return dense(run(compute)())

  expected = gradient(tf.Variable(VALUES))
  np.testing.assert_allclose(gradient(table), expected)


def test_the_gradient_of_a_lookup_is_sparse(table):
  with tf.GradientTape() as tape:
    rows = tf.nn.embedding_lookup(table, DISORDER)
    loss = tf.reduce_sum(rows)
  gradient = tape.gradient(loss, table)
  assert isinstance(gradient, tf.IndexedSlices)
  assert sorted(gradient.indices.numpy()) == sorted(set(DISORDER))
  expected = np.zeros_like(VALUES)
  np.add.at(expected, DISORDER, 1.0)
  np.testing.assert_array_equal(dense(gradient), expected)


def test_there_is_no_gradient_where_nothing_was_read(table):
  with tf.GradientTape() as tape:
    loss = tf.constant(1.0) * 2.0
  assert tape.gradient(loss, table) is None


def test_a_tape_watches_what_it_is_told(table):
  with tf.GradientTape(watch_accessed_variables=False) as tape:
    tape.watch(table)
    loss = loss_sparse(table)
  assert dense(tape.gradient(loss, table)).any()


def test_it_passes_through_functions_as_itself(table):
  @tf.function
  def rows(variable, ids):
    assert isinstance(variable, sharded.ShardedVariable)
    return variable.sparse_read(ids)

  np.testing.assert_array_equal(rows(table, DISORDER), VALUES[DISORDER])


def test_assignments_reach_all_rows(table):
  table.assign(VALUES * 2)
  table.assign_add(VALUES)
  table.assign_sub(np.ones_like(VALUES))
  np.testing.assert_array_equal(table.numpy(), VALUES * 3 - 1)
  update = tf.IndexedSlices(tf.ones([2, COLUMNS]), tf.constant([9, 2]))
  table.assign(VALUES)
  table.scatter_add(update)
  expected = VALUES.copy()
  expected[[9, 2]] += 1
  np.testing.assert_array_equal(table.numpy(), expected)


def test_it_reads_like_an_array_and_like_a_tensor(table):
  for read in (np.asarray, tf.convert_to_tensor, lambda t: t.value()):
    np.testing.assert_array_equal(read(table), VALUES)
  np.testing.assert_array_equal(table.read_value(), VALUES)
  np.testing.assert_array_equal(np.asarray(table, np.int32), VALUES)
  np.testing.assert_array_equal(table + 1.0, VALUES + 1)
  np.testing.assert_array_equal(table[2:8], VALUES[2:8])
  assert (table.shape, table.dtype) == ([ROWS, COLUMNS], tf.float32)
  assert table.trainable
  assert not make_untrainable().trainable


def make_untrainable():
  shards = [tf.Variable([1.0], trainable=False) for _ in range(2)]
  return sharded.ShardedVariable(shards)


def test_splits_by_rows(table):
  parts = [part.numpy() for part in table.split(tf.constant(VALUES))]
  for part, expected in zip(parts, np.array_split(VALUES, 3), strict=True):
    np.testing.assert_array_equal(part, expected)
  slices = tf.IndexedSlices(VALUES[DISORDER], tf.constant(DISORDER))
  indices = [list(part.indices.numpy()) for part in table.split(slices)]
  assert indices == [[0, 3, 1], [0, 0], [2, 2]]  # rows 0-3, 4-6 and 7-9


@pytest.mark.parametrize('num_shards', [1, 2, 3, 5])
def test_a_checkpoint_of_three_shards_restores_into(num_shards, tmp_path):
  path = tf.train.Checkpoint(table=make(3)).save(str(tmp_path / 'c'))
  table = make(num_shards, np.zeros_like(VALUES))
  status = tf.train.Checkpoint(table=table).restore(path)
  status.assert_existing_objects_matched()
  np.testing.assert_array_equal(table.numpy(), VALUES)


def test_a_checkpoint_of_three_shards_restores_into_a_variable(tmp_path):
  path = tf.train.Checkpoint(table=make(3)).save(str(tmp_path / 'c'))
  table = tf.Variable(np.zeros_like(VALUES))
  tf.train.Checkpoint(table=table).restore(path)
  np.testing.assert_array_equal(table.numpy(), VALUES)


def test_a_checkpoint_of_a_variable_restores_into_shards(tmp_path):
  path = tf.train.Checkpoint(table=tf.Variable(VALUES)).save(
    str(tmp_path / 'c')
  )
  table = make(3, np.zeros_like(VALUES))
  tf.train.Checkpoint(table=table).restore(path)
  np.testing.assert_array_equal(table.numpy(), VALUES)
