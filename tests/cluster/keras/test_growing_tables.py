"""Embeddings keyed by any id compute what tables with a vocabulary do."""

import functools
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support import kinds
from tests.support import turns
import tfps
import tfps.keras

pytestmark = pytest.mark.tfps_cluster(workers=2, ps=2)

_RANDOM = np.random.default_rng(0)
# Ids of any size, more of them than there are initial values.
_IDS = np.unique(_RANDOM.integers(-(2**63), 2**63 - 1, 1500))
_ROWS = np.concatenate([np.arange(1500), _RANDOM.integers(0, 200, 564)])
_X, _Y = _IDS[_ROWS], (_ROWS % 7).astype('f')[:, None]

_optimizers = keras.optimizers
_OPTIMIZERS = {
  'SGD': lambda: _optimizers.SGD(0.1),
  'momentum': lambda: _optimizers.SGD(0.1, momentum=0.9, nesterov=True),
  'Adagrad': lambda: _optimizers.Adagrad(0.1),
  'Adadelta': lambda: _optimizers.Adadelta(0.1),
  'RMSprop': lambda: _optimizers.RMSprop(0.1, momentum=0.5, centered=True),
  'Ftrl': lambda: _optimizers.Ftrl(0.1, l1_regularization_strength=0.001),
  'Adam': lambda: _optimizers.Adam(0.1),
  'AMSGrad': lambda: _optimizers.Adam(0.1, amsgrad=True),
  'AdamW': lambda: _optimizers.AdamW(0.1, weight_decay=0.01),
  'Adamax': lambda: _optimizers.Adamax(0.1),
  'Nadam': lambda: _optimizers.Nadam(0.1),
  'Lion': lambda: _optimizers.Lion(0.1),
  'scaled': lambda: _optimizers.LossScaleOptimizer(_optimizers.SGD(0.1)),
  'clipped': lambda: _optimizers.SGD(0.1, global_clipnorm=0.01),
}


def _model(embedding, optimizer, **arguments):
  inputs = keras.Input((), dtype='int64')
  outputs = keras.layers.Dense(1, kernel_initializer='ones')(embedding(inputs))
  model = keras.Model(inputs, outputs)
  model.compile(optimizer, 'mse', **arguments)
  return model


def _trained(embedding, optimizer, x, **arguments):
  model = _model(embedding, optimizer, **arguments)
  history = model.fit(x, _Y, batch_size=129, epochs=2, shuffle=False, verbose=0)
  return [*history.history['loss'], model.predict(x, batch_size=516, verbose=0)]


@pytest.mark.tfps_cluster(workers=1, ps=2)
@pytest.mark.parametrize(
  ('has_strategy', 'make_optimizer'),
  turns.by_turns(
    _OPTIMIZERS,
    {'strategy': (True,), 'alone': (False,)},
    rarely=[
      *('Adamax', 'AMSGrad', 'Lion', 'Adadelta', 'momentum', 'RMSprop'),
      *('Adam', 'Ftrl', 'SGD', 'AdamW', 'Nadam', 'Adagrad', 'scaled'),
    ],
  ),
)
def test_optimizers_do_to_looked_up_rows_what_lazy_ones_do(
  tfps_cluster, has_strategy, make_optimizer
):
  arguments = {'steps_per_execution': 4}
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  with strategy.scope():
    optimizer = make_optimizer()
    inner = getattr(optimizer, 'inner_optimizer', optimizer)
    tfps.keras.optimizers.lazy(inner)
    expected = _trained(
      keras.layers.Embedding(1500, 4, 'ones'), optimizer, _ROWS, **arguments
    )
    if has_strategy:
      embedding = tfps.embeddings.Embedding(4, 'ones')
      actual = _trained(embedding, make_optimizer(), _X, **arguments)
  if not has_strategy:
    embedding = tfps.embeddings.Embedding(4, 'ones')
    actual = _trained(embedding, make_optimizer(), _X, **arguments)
  assert embedding.table.num_keys() == 1500
  assert len(embedding.table.weights) == 3 * (2 if has_strategy else 1)
  for one, other in zip(actual, expected, strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.fixture
def graphs_stay_as_traced():
  """Has TensorFlow optimize no graphs, as to find what one does wrong."""
  set_options = tf.config.optimizer.set_experimental_options
  set_options({'disable_meta_optimizer': True})
  yield
  set_options({'disable_meta_optimizer': False})


@pytest.mark.tfps_cluster(workers=1, ps=2)
@pytest.mark.parametrize(
  'make',
  [
    tfps.ParameterServerStrategy,
    pytest.param(tfps.BetweenGraphStrategy, marks=pytest.mark.exhaustive),
  ],
)
@pytest.mark.usefixtures('graphs_stay_as_traced')
def test_steps_need_no_optimization_of_their_graphs(tfps_cluster, make):
  expected = _trained(tfps.embeddings.Embedding(4, 'ones'), 'adagrad', _X)
  strategy = make(tfps_cluster.cluster)
  with strategy.scope():
    embedding = tfps.embeddings.Embedding(4, 'ones')
    actual = _trained(embedding, 'adagrad', _X, steps_per_execution=4)
  for one, other in zip(actual, expected, strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.tfps_cluster(workers=1, ps=2)
def test_features_in_one_table_learn_what_those_of_their_own_do(tfps_cluster):
  columns = np.stack([_X, _X[::-1], _X // 2], axis=1)
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)

  def trained(embed):
    ids = keras.Input((3,), dtype='int64')
    dense = keras.layers.Dense(1, kernel_initializer='ones')
    model = keras.Model(ids, dense(keras.layers.Flatten()(embed(ids))))
    model.compile('adagrad', 'mse', steps_per_execution=4)
    model.fit(columns, _Y, batch_size=129, epochs=2, shuffle=False, verbose=0)
    return model.predict(columns, batch_size=516, verbose=0)

  with strategy.scope():
    one = tfps.embeddings.Embedding(4, 'ones', num_features=3)
    own = [tfps.embeddings.Embedding(4, 'ones') for _ in range(3)]
    expected = trained(
      lambda ids: keras.ops.stack(
        [layer(ids[:, i]) for i, layer in enumerate(own)], axis=1
      )
    )
    actual = trained(one)
  np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
  assert one.table.num_keys() == sum(each.table.num_keys() for each in own)


@pytest.mark.exhaustive
@pytest.mark.parametrize('name', list(kinds.STRATEGIES))
def test_each_look_up_is_in_one_update(tfps_cluster, name):
  is_alone = name in kinds.ALONE
  with tfps.testing.InProcessCluster(1, 2) as one:
    cluster = one.cluster if is_alone else tfps_cluster.cluster
    strategy = kinds.STRATEGIES[name](cluster)
    with strategy.scope():
      table = tfps.embeddings.Table(2, 'zeros', name='counted')
      table.build()
      optimizer = keras.optimizers.SGD(1.0)
      optimizer.build(table.trainable_variables)

    def step(keys):
      with tf.GradientTape() as tape:
        loss = tf.reduce_sum(table.lookup(keys))
        loss += tf.reduce_sum(table.lookup(keys[:3]))  # a second feature
      variables = table.trainable_variables
      optimizer.apply_gradients(
        zip(tape.gradient(loss, variables), variables, strict=True)
      )

    def dataset_fn(context):
      return tf.data.Dataset.from_tensors(tf.constant(_X[:50])).repeat()

    steps = 12
    kinds.train(strategy, step, dataset_fn, steps)
    keys, numbers = np.unique(_X[:50], return_counts=True)
    numbers += (keys[:, None] == _X[:3]).sum(1)
    updates = int(optimizer.iterations.numpy())
    rows = table.lookup(keys, training=False)
    assert table.num_keys() == len(keys)
    np.testing.assert_array_equal(
      rows, -updates * numbers[:, None] * np.ones([1, 2])
    )
    assert updates >= steps / 2
    strategy.close()


def test_workers_that_meet_new_keys_at_once_make_one_row(tfps_cluster):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  with strategy.scope():
    table = tfps.embeddings.Table(3, name='raced')
    table.build()
  keys = tf.constant(_X)

  @tf.function
  def look_up(first):
    return table.lookup(keys[first:], training=True)

  with tfps.Coordinator(strategy, timeout_secs=60) as coordinator:
    values = [
      coordinator.schedule(look_up, args=(first,))
      for first in (0, 0, 1, 0, 2, 0, 3)
    ]
    rows = coordinator.fetch(values)
  assert table.num_keys() == len(np.unique(_X))
  for row, first in zip(rows, (0, 0, 1, 0, 2, 0, 3), strict=True):
    np.testing.assert_array_equal(row, rows[0][first:])
  strategy.close()


def test_tables_do_not_wait_for_each_other(tfps_cluster):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  with strategy.scope():
    tables = [tfps.embeddings.Table(2, name=f'apart_{i}') for i in range(3)]
    for table in tables:
      table.build()

  @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
  def look_up(keys):
    return [table.lookup(keys, training=True) for table in tables]

  with strategy.scope():
    operations = look_up.get_concrete_function().graph.get_operations()
  handles = [op for op in operations if op.type == 'MutableHashTableV2']
  assert len({op.device for op in handles}) == 2
  # Two for each of two shards of a table, however often they are used.
  assert len(handles) == 2 * 2 * 3
  assert not any(op.control_inputs for op in handles)
  # To wait for what is done on another ps would take a message.
  for op in operations:
    elsewhere = {before.device for before in op.control_inputs} - {op.device}
    assert '/job:ps' not in op.device or not elsewhere
  strategy.close()


def test_an_unknown_key_reads_what_it_will_begin_with(tfps_cluster):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  with strategy.scope():
    table = tfps.embeddings.Table(3, 'normal', name='unknown')
    before = table.lookup(_X, training=False).numpy()
    assert table.num_keys() == 0
    np.testing.assert_array_equal(table.lookup(_X, training=True), before)
    assert table.num_keys() == len(np.unique(_X))
    np.testing.assert_array_equal(table.lookup(_X, training=False), before)
  assert len(np.unique(before, axis=0)) > 700  # of 1,024 initial values
  strategy.close()


_WORDS = np.array(['', 'a', 'b', 'a', 'ccc', 'b', 'ü'])


@pytest.mark.parametrize('combiner', ['sum', 'mean', 'sqrtn'])
@pytest.mark.parametrize('is_weighted', [False, True])
def test_combiners_are_those_of_tensorflow(combiner, is_weighted):
  layer = tfps.embeddings.Embedding(2, 'normal', combiner=combiner)
  ragged = tf.RaggedTensor.from_row_lengths(_WORDS, [3, 0, 1, 3])
  weights = ragged.with_values(np.arange(1, 8, dtype='f'))
  own = (weights,) if is_weighted else ()
  rows = layer.table.lookup(_WORDS, training=True).numpy()
  numbers = ragged.with_values(np.arange(7)).to_sparse()
  expected = tf.nn.embedding_lookup_sparse(
    rows,
    numbers,
    weights.to_sparse() if is_weighted else None,
    combiner=combiner,
  )
  np.testing.assert_allclose(layer(ragged, *own), expected, rtol=1e-6)
  own = (weights.to_sparse(),) if is_weighted else ()
  np.testing.assert_allclose(
    layer(ragged.to_sparse(), *own), expected, rtol=1e-6
  )
  dense = tf.constant(_WORDS[:6].reshape(2, 3))
  own = (tf.reshape(weights.values[:6], [2, 3]),) if is_weighted else ()
  numbers = tf.sparse.from_dense(np.arange(1, 7).reshape(2, 3))
  numbers = tf.SparseTensor(numbers.indices, numbers.values - 1, [2, 3])
  factors = tf.sparse.from_dense(own[0]) if is_weighted else None
  np.testing.assert_allclose(
    layer(dense, *own),
    tf.nn.embedding_lookup_sparse(rows, numbers, factors, combiner=combiner),
    rtol=1e-6,
  )


def test_padding_is_masked_and_left_out():
  layer = tfps.embeddings.Embedding(2, 'normal', mask_zero=True)
  ids = tf.constant([[3, 0, 5], [0, 0, 0]])
  np.testing.assert_array_equal(
    layer(ids)._keras_mask, [[True, False, True], [False] * 3]
  )
  combining = tfps.embeddings.Embedding(
    2, combiner='mean', mask_zero=True, table=layer.table
  )
  three, five = layer.table.lookup([3, 5], training=True).numpy()
  np.testing.assert_allclose(
    combining(ids), [(three + five) / 2, [0, 0]], rtol=1e-6
  )


@pytest.mark.parametrize('dtype', ['int64', 'string'])
def test_later_layers_of_a_model_leave_padding_out(dtype, tmp_path):
  inputs = keras.Input((3,), dtype=dtype)
  layer = tfps.embeddings.Embedding(2, 'normal', mask_zero=True)
  mean = keras.layers.GlobalAveragePooling1D()(layer(inputs))
  model = keras.Model(inputs, mean)
  ids = {'int64': [[3, 5, 0]], 'string': [['a', 'b', '']]}[dtype]
  rows = layer.table.lookup(tf.constant(ids, dtype), training=True).numpy()
  np.testing.assert_allclose(
    model(tf.constant(ids, dtype)), rows[:, :2].mean(axis=1), rtol=1e-6
  )
  model.save(tmp_path / 'model.keras')
  loaded = keras.models.load_model(tmp_path / 'model.keras')
  given = tf.constant(ids, dtype)
  np.testing.assert_array_equal(loaded(given), model(given))


def test_ragged_ids_stay_ragged():
  layer = tfps.embeddings.Embedding(2, 'normal')
  ids = tf.RaggedTensor.from_nested_row_lengths([4, 5, 4], [[2, 1], [1, 2, 0]])
  rows = layer(ids)
  assert rows.shape.as_list() == [2, None, None, 2]
  np.testing.assert_array_equal(
    rows.flat_values, layer.table.lookup(ids.flat_values)
  )


@pytest.mark.parametrize('combiner', ['sum', 'mean', 'sqrtn'])
@pytest.mark.parametrize('shape', [[0], [4, 0], [4, 2, 0], [0, 3], [0, 0]])
def test_nothing_is_combined_to_zeros(shape, combiner):
  layer = tfps.embeddings.Embedding(3, 'ones', combiner=combiner)
  expected = np.zeros([*shape[:-1], 3])
  np.testing.assert_array_equal(layer(tf.zeros(shape, tf.int64)), expected)


def test_the_last_of_several_ragged_axes_is_combined():
  layer = tfps.embeddings.Embedding(2, 'normal', combiner='sum')
  ids = tf.ragged.constant([[[3, 5], [3]], [], [[7]]], dtype=tf.int64)
  actual = layer(ids, training=True)
  three, five, seven = layer.table.lookup([3, 5, 7]).numpy()
  assert actual.row_lengths().numpy().tolist() == [2, 0, 1]
  np.testing.assert_allclose(
    actual.flat_values, [three + five, three, seven], rtol=1e-6
  )


@pytest.mark.parametrize(
  ('make', 'message'),
  [
    (lambda: tfps.embeddings.Embedding(0), 'width=0, but it is at least 1'),
    (
      lambda: tfps.embeddings.Embedding(2, num_shards=0),
      'num_shards=0, but it is at least 1',
    ),
    (
      lambda: tfps.embeddings.Embedding(2, combiner='max'),
      "combiner='max' is none of",
    ),
    (
      lambda: tfps.embeddings.Embedding(
        2, table=tfps.embeddings.Table(3, name='three')
      ),
      'output_dim=2, but rows of the table three have 3',
    ),
    (
      lambda: tfps.embeddings.Embedding(
        2, num_shards=3, table=tfps.embeddings.Table(2)
      ),
      'num_shards=3 is given beside a table',
    ),
    (
      lambda: tfps.embeddings.Embedding(2)(tf.constant([1.5])),
      'keys of type float32, but they are integers or strings',
    ),
    (
      lambda: tfps.embeddings.Embedding(2)(tf.sparse.from_dense([[1]])),
      'sparse ids are given, but no combiner',
    ),
    (
      lambda: tfps.embeddings.Embedding(2)(
        tf.constant([1]), weights=tf.constant([1.0])
      ),
      'weights are given, but no combiner',
    ),
    (
      lambda: tfps.embeddings.Embedding(2, combiner='sum')(tf.constant(1)),
      'have no axis to combine',
    ),
    (
      lambda: tfps.embeddings.Embedding(
        2, table=tfps.embeddings.Table(2)
      ).get_config(),
      'given a table cannot be saved',
    ),
  ],
)
def test_what_is_wrong_is_named(make, message):
  with pytest.raises((ValueError, TypeError), match=message):
    make()


def test_a_table_is_built_before_steps():
  table = tfps.embeddings.Table(2, name='early')
  with pytest.raises(RuntimeError, match=r'early: .*not built. Call its build'):
    tf.function(table.lookup)(tf.constant([1]))
  assert table.lookup([1]).shape == [1, 2]  # outside of functions, it is now


class Subclassed(keras.Model):
  """A model whose `call` is not told whether it is in training."""

  def __init__(self):
    super().__init__()
    self.embedding = tfps.embeddings.Embedding(3)
    self.dense = keras.layers.Dense(1)

  def call(self, ids):
    return self.dense(self.embedding(ids))


@pytest.mark.exhaustive
@pytest.mark.parametrize('has_strategy', [False, True])
def test_a_subclassed_model_learns_by_fit_alone(tfps_cluster, has_strategy):
  strategy = tf.distribute.get_strategy()
  if has_strategy:
    strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  with strategy.scope():
    model = Subclassed()
    model.compile(keras.optimizers.Adagrad(0.5), 'mse')
  first, *_, last = model.fit(_X[:200], _Y[:200], epochs=8, verbose=0).history[
    'loss'
  ]
  assert last < first / 4
  table = model.embedding.table
  assert table.num_keys() == 200
  assert len(table.weights) == 3 * (2 if has_strategy else 1)
  model.predict(_X, verbose=0)
  model.evaluate(_X, _Y, verbose=0)
  assert table.num_keys() == 200
  if has_strategy:
    devices = [w.value.device for w in table.weights]
    assert ['ps/replica:0/task:1' in each for each in devices] == [
      *[False, True],  # rows, then keys and counts of each shard
      *[False, False, True, True],
    ]
    strategy.close()


@pytest.mark.parametrize('kind', ['ragged', 'sparse', 'weighted'])
def test_inputs_of_functional_models(kind):
  ids = keras.Input(
    (4,) if kind == 'sparse' else (None,),
    dtype='int64',
    ragged=kind == 'ragged',
    sparse=kind == 'sparse',
  )
  weights = keras.Input((None,))
  layer = tfps.embeddings.Embedding(2, 'ones', combiner='sum')
  values = tf.constant([[7, 8, 8, 0], [9, 0, 0, 0]], tf.int64)
  if kind == 'weighted':
    model = keras.Model([ids, weights], layer(ids, weights=weights))
    given = [values, tf.constant([[2, 1, 1, 0], [3, 0, 0, 0]], tf.float32)]
    expected, number = [[4, 4], [3, 3]], 4
  else:
    model = keras.Model(ids, layer(ids))
    convert = tf.sparse.from_dense
    if kind == 'ragged':
      convert = functools.partial(tf.RaggedTensor.from_tensor, padding=0)
    given, expected, number = convert(values), [[3, 3], [1, 1]], 3
  assert model.output_shape == (None, 2)
  np.testing.assert_array_equal(model(given, training=True), expected)
  assert layer.table.num_keys() == number


def test_a_strategy_without_ps_is_refused():
  with tf.distribute.MirroredStrategy(['cpu:0']).scope():
    layer = tfps.embeddings.Embedding(2)
    with pytest.raises(ValueError, match='MirroredStrategy has no ps'):
      layer.build()


def _strategy(tfps_cluster, has_strategy):
  if has_strategy:
    return tfps.ParameterServerStrategy(tfps_cluster.cluster)
  return tf.distribute.get_strategy()


@pytest.mark.tfps_cluster(workers=1, ps=2)
@pytest.mark.parametrize('has_strategy', [False, True])
def test_a_frozen_table_gets_no_rows_and_loses_none(tfps_cluster, has_strategy):
  known, unknown, targets = _IDS[:20], _IDS[20:40], np.ones([20, 1])
  with _strategy(tfps_cluster, has_strategy).scope():
    layer = tfps.embeddings.Embedding(4, eviction=tfps.embeddings.Lru(25))
    model = _model(layer, 'sgd')
  model.fit(known, targets, verbose=0)
  before = layer(known).numpy()
  layer.trainable = False
  model.compile('sgd', 'mse')
  model.fit(unknown, targets, epochs=2, verbose=0)
  assert layer.table.num_keys() == 20
  np.testing.assert_array_equal(layer(known), before)


@pytest.mark.tfps_cluster(workers=1, ps=2)
@pytest.mark.parametrize(
  ('has_strategy', 'kind'),
  turns.rarely(
    [*itertools.product((False, True), ('plain', 'forgetting', 'stored'))],
    but=[(True, 'plain'), (False, 'forgetting')],
  ),
)
def test_weights_of_before_are_set_again(
  tfps_cluster, tmp_path, has_strategy, kind
):
  options = {
    'plain': dict,
    'forgetting': lambda: {
      'admission': tfps.embeddings.Counter(2),
      'eviction': tfps.embeddings.Lru(2000),
    },
    'stored': lambda: {
      'storage': tfps.embeddings.Storage(1 << 12, str(tmp_path))
    },
  }[kind]()
  with _strategy(tfps_cluster, has_strategy).scope():
    layer = tfps.embeddings.Embedding(4, **options)
    model = _model(layer, 'adagrad')
  model.fit(np.repeat(_IDS[:700], 2), np.ones([1400, 1]), verbose=0)
  weights, number = model.get_weights(), layer.table.num_keys()
  before = model.predict(_IDS, verbose=0)
  model.fit(np.repeat(_IDS, 2), np.zeros([3000, 1]), epochs=2, verbose=0)
  assert number < layer.table.num_keys()
  model.set_weights(weights)
  assert layer.table.num_keys() == number
  np.testing.assert_array_equal(model.predict(_IDS, verbose=0), before)
  with pytest.raises(ValueError, match='not compatible with provided weight'):
    model.set_weights([*weights[:-1], np.zeros([3])])


@pytest.mark.parametrize('eviction', [None, tfps.embeddings.Lru(100)])
def test_keys_keep_their_slots_as_weights_are_set(eviction):
  known, new, targets = _IDS[:10], _IDS[10:20], np.zeros([10, 1])
  layer = tfps.embeddings.Embedding(4, 'ones', eviction=eviction)
  model = _model(layer, 'adagrad')
  model.layers[-1].trainable = False

  def train(keys, epochs=1):
    model.fit(keys, targets, epochs=epochs, shuffle=False, verbose=0)
    return layer(keys).numpy()

  train(known)
  weights, last = model.get_weights(), train(known)
  model.set_weights(weights)
  assert (train(known) > last).all()  # its slots have two steps before
  model.set_weights(weights)
  first = train(new)
  train(new, epochs=9)
  model.set_weights(weights)
  np.testing.assert_array_equal(train(new), first)
