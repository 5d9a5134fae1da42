"""Keras' own fit, evaluate and predict, under both strategies."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support import seen_metric
from tests.support import turns
from tests.support import versions
import tfps
from tfps.server import task_monitor
from tfps.variables import partitioners

_N = 90
_X = np.random.default_rng(0).random((_N, 4), 'f')
_Y = _X.sum(1, keepdims=True)
_WEIGHT = np.linspace(0.5, 1.5, _N, dtype='f')
_BATCH = 16
_NUM_BATCHES = -(-_N // _BATCH)

one_worker = pytest.mark.tfps_cluster(workers=1, ps=2)
# For tests of what has nothing to do with variables.
whole = pytest.mark.parametrize('partitioner', [None], ids=['whole'])

in_shards = pytest.mark.parametrize(
  'partitioner', [partitioners.FixedShards(2)], ids=['in shards']
)
two_workers = pytest.mark.tfps_cluster(workers=2, ps=2)
STRATEGIES = [tfps.ParameterServerStrategy, tfps.BetweenGraphStrategy]


@pytest.fixture
def strategy(request, tfps_cluster, partitioner):
  return request.param(tfps_cluster.cluster, partitioner)


under_both = pytest.mark.parametrize(
  'strategy', STRATEGIES, indirect=True, ids=lambda s: s.__name__
)
under_coordinator = pytest.mark.parametrize(
  'strategy', STRATEGIES[:1], indirect=True, ids=['coordinator']
)


def build(**compile_args) -> keras.Model:
  keras.utils.set_random_seed(1)
  model = keras.Sequential(
    [
      keras.layers.Input((4,)),
      keras.layers.Dense(8, 'relu'),
      keras.layers.Dropout(0.25),
      keras.layers.Dense(1),
    ]
  )
  defaults = {
    'optimizer': keras.optimizers.SGD(0.05),
    'loss': 'mse',
    'metrics': ['mae', keras.metrics.R2Score(), seen_metric.Seen()],
    'weighted_metrics': ['mse'],
    'steps_per_execution': 2,
  }
  model.compile(**{**defaults, **compile_args})
  return model


def _dataset() -> tf.data.Dataset:
  return tf.data.Dataset.from_tensor_slices((_X, _Y)).batch(_BATCH)


def _generator():
  for start in range(0, _N, _BATCH):
    yield _X[start : start + _BATCH], _Y[start : start + _BATCH]


class _Sequence(keras.utils.PyDataset):
  def __len__(self) -> int:
    return _NUM_BATCHES

  def __getitem__(self, index):
    rows = slice(index * _BATCH, (index + 1) * _BATCH)
    return _X[rows], _Y[rows], _WEIGHT[rows]


INPUTS = {
  'arrays': lambda: {'x': _X, 'y': _Y, 'batch_size': _BATCH},
  'tensors': lambda: {
    'x': tf.constant(_X),
    'y': tf.constant(_Y),
    'batch_size': _BATCH,
  },
  'sample weights': lambda: {
    'x': _X,
    'y': _Y,
    'sample_weight': _WEIGHT,
    'batch_size': _BATCH,
  },
  'dataset': lambda: {'x': _dataset()},
  'dataset of unknown size': lambda: {
    'x': _dataset().filter(lambda x, y: True)
  },
  'endless dataset': lambda: {
    'x': _dataset().repeat(),
    'steps_per_epoch': 4,
  },
  'generator': lambda: {'x': _generator()},
  'PyDataset': lambda: {'x': _Sequence()},
}


_exhaustive = pytest.mark.exhaustive
# Other tests pass the rest of the kinds.
_OFTEN = ('sample weights', 'tensors')
_SHARDS = partitioners.FixedShards(2)
_WAYS = {
  'coordinator, in shards': (tfps.ParameterServerStrategy, _SHARDS),
  'between graphs, in shards': (tfps.BetweenGraphStrategy, _SHARDS),
  'coordinator, whole': (tfps.ParameterServerStrategy, None),
  'between graphs, whole': (tfps.BetweenGraphStrategy, None),
}


@one_worker
@pytest.mark.parametrize(
  ('strategy', 'partitioner', 'kind'),
  [
    *turns.by_turns({kind: kind for kind in _OFTEN}, _WAYS),
    *(
      pytest.param(*way, kind, id=f'{name}-{kind}', marks=_exhaustive)
      for name, way in _WAYS.items()
      for kind in INPUTS
      if kind not in _OFTEN
    ),
  ],
  indirect=['strategy'],
)
def test_fit_is_as_in_a_single_process(strategy, kind):
  with strategy.scope():
    model = build()
  history = model.fit(**INPUTS[kind](), shuffle=False, verbose=0)
  expected, weights, iterations = _fit_alone(kind)
  assert history.history == expected
  for mine, theirs in zip(model.get_weights(), weights, strict=True):
    np.testing.assert_array_equal(mine, theirs)
  assert int(model.optimizer.iterations) == iterations


@functools.cache
def _fit_alone(kind):
  model = build()
  history = model.fit(**INPUTS[kind](), shuffle=False, verbose=0)
  return history.history, model.get_weights(), int(model.optimizer.iterations)


@whole
@two_workers
@under_coordinator
@pytest.mark.parametrize(
  'kind',
  turns.rarely(
    [kind for kind in INPUTS if kind not in _OFTEN],
    but=['generator'],
  ),
)
def test_workers_together_see_each_example_once(strategy, kind):
  with strategy.scope():
    model = build()
  epochs = 1 if kind == 'generator' else 2
  history = model.fit(**INPUTS[kind](), epochs=epochs, verbose=0)
  steps = 4 if kind == 'endless dataset' else _NUM_BATCHES
  seen = 4 * _BATCH if kind == 'endless dataset' else _N
  assert int(model.optimizer.iterations) == epochs * steps
  assert history.history['seen'][0] == seen


@in_shards
@two_workers
@under_coordinator
def test_evaluate_and_predict_are_as_in_a_single_process(strategy):
  with strategy.scope():
    model = build()
  alone = build()
  assert model.evaluate(_X, _Y, verbose=0) == alone.evaluate(_X, _Y, verbose=0)
  assert model.evaluate(
    _dataset(), steps=3, verbose=0, return_dict=True
  ) == alone.evaluate(_dataset(), steps=3, verbose=0, return_dict=True)
  np.testing.assert_array_equal(
    model.predict(_X, verbose=0), alone.predict(_X, verbose=0)
  )
  np.testing.assert_array_equal(
    model.predict_on_batch(_X[:3]), alone.predict_on_batch(_X[:3])
  )
  assert model.test_on_batch(_X, _Y) == alone.test_on_batch(_X, _Y)
  assert model.train_on_batch(_X, _Y) == alone.train_on_batch(_X, _Y)


@pytest.mark.exhaustive
@one_worker
@pytest.mark.parametrize(
  ('strategy', 'partitioner'),
  _WAYS.values(),
  ids=_WAYS,
  indirect=['strategy'],
)
def test_validation_weights_and_epochs(strategy):
  with strategy.scope():
    model = build()
  alone = build()
  labels = (_Y.mean() < _Y).astype('i')
  arguments = {
    'x': _X,
    'y': labels,
    'class_weight': {0: 1.0, 1: 3.0},
    'validation_split': 0.2,
    'validation_freq': 2,
    'epochs': 4,
    'initial_epoch': 1,
    'shuffle': False,
    'verbose': 0,
  }
  history = model.fit(**arguments)
  expected = alone.fit(**arguments)
  assert history.history == expected.history
  assert history.epoch == [1, 2, 3]


@whole
@two_workers
@pytest.mark.parametrize(
  'strategy',
  turns.rarely(STRATEGIES, but=STRATEGIES[1:]),
  indirect=True,
  ids=lambda s: s.__name__,
)
def test_a_function_of_an_input_context(strategy):
  contexts = []

  def dataset_fn(context):
    contexts.append((context.num_input_pipelines, context.input_pipeline_id))
    return _dataset().repeat()

  with strategy.scope():
    model = build()
  history = model.fit(dataset_fn, steps_per_epoch=10, epochs=2, verbose=0)
  assert int(model.optimizer.iterations) >= 20
  assert len(history.history['loss']) == 2
  num_workers = strategy.extended._num_workers
  expected = {(num_workers, i) for i in range(num_workers)}
  if isinstance(strategy, tfps.BetweenGraphStrategy):
    expected = {(1, 0)}
  assert expected <= set(contexts)


_LABELS = (_Y > 2).astype('i')


def _labelled(numbers=None) -> tf.data.Dataset:
  if numbers is None:
    numbers = tf.data.Dataset.range(_N)
  examples = numbers.map(lambda i: (tf.gather(_X, i), tf.gather(_LABELS, i)))
  return examples.batch(_BATCH)


@whole
@one_worker
@pytest.mark.parametrize(
  ('strategy', 'source'),
  turns.by_turns(
    {source: source for source in ('a queue', 'datasets')},
    {strategy.__name__: (strategy,) for strategy in STRATEGIES},
    rarely=['datasets'],
  ),
  indirect=['strategy'],
)
def test_classes_have_their_weights_in_a_function_too(strategy, source):
  with strategy.scope():
    model = build(steps_per_execution=3)
    queue = tfps.input.SplitQueue(tfps.input.Ranges(_N, _N))

  def dataset_fn(context):
    return _labelled(queue.dataset(context) if source == 'a queue' else None)

  arguments = {'class_weight': {0: 1.0, 1: 7.0}, 'verbose': 0}
  steps = None if source == 'a queue' else _NUM_BATCHES
  history = model.fit(dataset_fn, steps_per_epoch=steps, **arguments)
  alone = build(steps_per_execution=3)
  assert history.history == alone.fit(_labelled(), **arguments).history
  for mine, theirs in zip(
    model.get_weights(), alone.get_weights(), strict=True
  ):
    np.testing.assert_array_equal(mine, theirs)


@whole
@two_workers
@under_both
@pytest.mark.parametrize('name', ['y', 'sample_weight'])
def test_what_belongs_into_datasets_is_refused_beside_a_function(
  strategy, name
):
  with strategy.scope():
    model = build()
  for method in (model.fit, model.evaluate):
    with pytest.raises(ValueError, match=f'^{name}: given beside a function'):
      method(lambda context: _dataset(), **{name: _Y}, verbose=0)


@whole
@two_workers
@under_coordinator
def test_a_function_of_an_input_context_needs_a_number_of_steps(strategy):
  with strategy.scope():
    model = build()
  with pytest.raises(ValueError, match='Give steps_per_epoch'):
    model.fit(lambda context: _dataset())


@whole
@two_workers
@under_coordinator
@pytest.mark.parametrize('name', ['jit_compile', 'run_eagerly'])
def test_what_cannot_work_is_refused(strategy, name):
  with strategy.scope():
    model = build(**{name: True})
  with pytest.raises(ValueError, match=f'compiled with {name}=True'):
    model.fit(_X, _Y)


@whole
@two_workers
@under_both
def test_a_model_may_be_compiled_by_names_outside_the_scope(strategy):
  with strategy.scope():
    model = build()
  model.compile('sgd', 'mse', metrics=['mae'])
  model.fit(_X, _Y, verbose=0, steps_per_epoch=4)
  assert 'job:ps' in model.optimizer.iterations.value.device
  assert model.optimizer.iterations.numpy() == 4


@whole
@two_workers
@under_both
def test_an_optimizer_of_outside_the_scope_is_refused(strategy):
  own = keras.optimizers.SGD()
  scaled = keras.optimizers.LossScaleOptimizer(own)
  with strategy.scope():
    model = build()
  for each in (own, scaled):
    model.compile(each, 'mse')
    with pytest.raises(ValueError, match=rf'{each.name}.* in strategy\.scope'):
      model.fit(_X, _Y, verbose=0)


class _Raises(keras.layers.Layer):
  def call(self, x):
    def check(value):
      if (value > 10).any():
        raise ValueError('a number above 10')
      return value

    return tf.ensure_shape(tf.numpy_function(check, [x], tf.float32), x.shape)


@whole
@two_workers
@under_coordinator
def test_a_step_that_fails_is_told_and_the_next_fit_works(strategy):
  with strategy.scope():
    model = keras.Sequential(
      [keras.layers.Input((4,)), _Raises(), keras.layers.Dense(1)]
    )
    model.compile('sgd', 'mse', metrics=[seen_metric.Seen()])
  wrong = _X.copy()
  wrong[50] = 11
  with pytest.raises(tf.errors.OpError, match='a number above 10'):
    model.fit(wrong, _Y, verbose=0)
  history = model.fit(_X, _Y, verbose=0)
  assert history.history['seen'] == [_N]


@pytest.mark.exhaustive
@whole
@two_workers
@under_coordinator
def test_tasks_are_asked_whether_they_are_alive_only_to_trace(
  strategy, monkeypatch
):
  with strategy.scope():
    model = build()
  rest = _N % _BATCH  # whose batch has a type of its own
  assert rest
  model.fit(_X, _Y, batch_size=_BATCH, verbose=0)
  asked = []
  monkeypatch.setattr(
    task_monitor.TaskMonitor,
    'wait_while_hung',
    lambda self, what, timeout_secs: asked.append(what),
  )
  model.fit(_X, _Y, batch_size=_BATCH, epochs=2, verbose=0)
  assert not asked
  model.fit(_X, _Y, batch_size=_BATCH + 1, verbose=0)
  assert asked == ['schedule'] * 2


@_exhaustive
@whole
@two_workers
@under_coordinator
def test_counts_are_exact(strategy):
  with strategy.scope():
    model = build(
      steps_per_execution=3, metrics=[seen_metric.Seen()], weighted_metrics=[]
    )
  data = _dataset().repeat().take(210).prefetch(4)
  history = model.fit(data, verbose=0)
  assert int(model.optimizer.iterations) == 210
  assert history.history['seen'] == [sum(int(tf.shape(x)[0]) for x, _ in data)]


@_exhaustive
@whole
@two_workers
@under_coordinator
def test_callbacks_see_batches_and_epochs(strategy, tmp_path):
  ends = []
  with strategy.scope():
    model = build()
  history = model.fit(
    _X,
    _Y,
    epochs=10,
    batch_size=_BATCH,
    validation_data=(_X, _Y),
    verbose=0,
    callbacks=[
      keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: ends.append((batch, dict(logs)))
      ),
      keras.callbacks.EarlyStopping(min_delta=10.0, patience=1),
      keras.callbacks.ModelCheckpoint(tmp_path / 'best.keras'),
      keras.callbacks.CSVLogger(tmp_path / 'log.csv'),
      keras.callbacks.ReduceLROnPlateau(min_delta=10.0, patience=1),
    ],
  )
  assert len(history.epoch) == 2
  assert [batch for batch, _ in ends[: len(ends) // 2]] == [
    versions.batch_told(first, first + 1) for first in range(0, 6, 2)
  ]
  assert set(ends[-1][1]) == {'loss', 'mae', 'mse', 'r2_score', 'seen'}
  assert (tmp_path / 'log.csv').read_text().count('\n') == 3
  loaded = keras.models.load_model(
    tmp_path / 'best.keras',
    custom_objects={'Seen': seen_metric.Seen},
    compile=False,
  )
  np.testing.assert_array_equal(
    loaded.predict(_X, verbose=0), model.predict(_X, verbose=0)
  )
