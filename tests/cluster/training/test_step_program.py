"""A step is traced once, and does the same in a loop as by itself."""

import functools
import gc

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support import turns
import tfps
from tfps.input import sources
from tfps.monitor import registry as registry_lib
from tfps.training import step_loop
from tfps.training import step_program
from tfps.training import unrolling

_N, _BATCH = 52, 4
_X = np.random.default_rng(0).random((_N, 4), 'f')
_Y = _X.sum(1, keepdims=True)

one_worker = pytest.mark.tfps_cluster(workers=1, ps=2)


@pytest.mark.parametrize(
  ('num_steps', 'full', 'size', 'form'),
  [
    (1, 1, 1, (0, 1)),
    (8, 8, 1, (1, 0)),
    (1, 8, 1, (1, 0)),
    (3, 8, 1, (1, 0)),
    (8, 8, 4, (4, 0)),
    (7, 8, 4, (4, 3)),
    (3, 8, 4, (0, 3)),
    (4, 4, 4, (0, 4)),
    (20, 20, 32, (0, 20)),
    (70, 70, 32, (32, 6)),
  ],
)
@pytest.mark.quick
def test_form(num_steps, full, size, form):
  found = step_loop.Form.of(num_steps, full, size)
  assert (found.body, found.rest) == form
  # An execution of one step by itself is not logged, one in a loop is.
  assert found.is_logged == (form != (0, 1))


class _DependsOnItsNumber(keras.layers.Layer):
  """Adds noise, and something else at each third step."""

  def __init__(self):
    super().__init__()
    self.noise = keras.layers.Dropout(0.5, seed=3)
    self.number = self.add_weight(
      shape=(), dtype='int32', initializer='zeros', trainable=False
    )
    self.num_calls = 0

  def call(self, x, training=False):
    if not training:
      return x
    self.num_calls += 1  # when traced
    self.number.assign_add(1)
    third = tf.cond(
      tf.equal(self.number.value % 3, 0), lambda: 2.0 * x, lambda: x + 0.5
    )
    return self.noise(third, training=True)


def _model(steps_per_execution, **compile_args):
  keras.utils.set_random_seed(1)
  own = _DependsOnItsNumber()
  model = keras.Sequential(
    [keras.layers.Input((4,)), own, keras.layers.Dense(1)]
  )
  rate = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.7)
  settings = {
    'optimizer': keras.optimizers.Adam(rate),
    'loss': 'mse',
    'metrics': ['mae', keras.metrics.R2Score()],
    'steps_per_execution': steps_per_execution,
    **compile_args,
  }
  model.compile(**settings)
  own.num_calls = 0
  return model, own


def _fitted(model):
  history = model.fit(
    _X, _Y, batch_size=_BATCH, epochs=3, shuffle=False, verbose=0
  )
  return history.history, model.get_weights()


@functools.cache
def _fitted_alone():
  return _fitted(_model(1)[0])


def _counting_calls(update):
  """A step that gives each batch to a function, and counts its traces."""

  def step(batch):
    step.num_calls += 1
    update(tf.cast(batch, tf.float32))
    return {'batch': batch}

  step.num_calls = 0
  return step


def _assert_equal(found, expected):
  for name, values in expected[0].items():
    np.testing.assert_array_equal(found[0][name], values, name)
  for value, other in zip(found[1], expected[1], strict=True):
    np.testing.assert_array_equal(value, other)


@pytest.mark.exhaustive
@one_worker
@pytest.mark.parametrize('steps_per_execution', [1, 5, 13, 40])
def test_what_depends_on_the_steps_number_is_that_of_a_single_process(
  tfps_cluster, steps_per_execution
):
  expected = _fitted_alone()
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  with strategy.scope():
    model, _ = _model(steps_per_execution)
  _assert_equal(_fitted(model), expected)


@one_worker
def test_values_are_the_same_across_the_change_to_unrolled_steps(
  tfps_cluster, monkeypatch
):
  expected = _fitted_alone()
  monkeypatch.setattr(unrolling, '_TIMES_BEFORE_UNROLLING', 0)
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  with strategy.scope():
    model, own = _model(5)
  _assert_equal(_fitted(model), expected)
  assert own.num_calls == 1 + 5  # in the loop, and of a full execution only


_BY_STRATEGY = {
  kind.__name__: (kind,)
  for kind in (tfps.ParameterServerStrategy, tfps.BetweenGraphStrategy)
}


@one_worker
@pytest.mark.parametrize(
  ('make', 'has_queue'),
  turns.by_turns({'endless': False, 'a queue': True}, _BY_STRATEGY),
)
def test_steps_of_ones_own_are_unrolled_once_that_pays(
  tfps_cluster, monkeypatch, make, has_queue
):
  monkeypatch.setattr(unrolling, '_TIMES_BEFORE_UNROLLING', 0)
  strategy = make(tfps_cluster.cluster)
  with strategy.scope():
    total = tf.Variable(0.0)
    queue = tfps.input.SplitQueue(tfps.input.Ranges(17, 17))
  step = _counting_calls(lambda batch: total.assign(total * 2.0 + batch))
  trainer = (
    strategy if hasattr(strategy, 'train') else tfps.Coordinator(strategy)
  )

  def dataset_fn(context):
    if has_queue:
      return queue.dataset(context).map(lambda index: index + 1)
    return tf.data.Dataset.range(1, 1000)

  result = trainer.train(
    step, dataset_fn, steps=17, steps_per_execution=5, log_every_secs=1e6
  )
  # The end of a queue is done by single steps, which are traced by themselves.
  assert step.num_calls == 1 + 5 + has_queue
  assert result.step == 17
  expected = 0
  for batch in range(1, 18):
    expected = expected * 2 + batch
  assert float(total) == expected


@one_worker
@pytest.mark.parametrize(
  'make',
  turns.rarely(
    [tfps.ParameterServerStrategy, tfps.BetweenGraphStrategy],
    but=[tfps.ParameterServerStrategy],
  ),
)
@pytest.mark.parametrize('how', ['fit', 'train'])
def test_steps_that_use_what_others_leave_stay_in_a_loop(
  tfps_cluster, monkeypatch, caplog, make, how
):
  monkeypatch.setattr(unrolling, '_TIMES_BEFORE_UNROLLING', 0)
  strategy = make(tfps_cluster.cluster)
  left = []

  def step(batch):
    left.append(tf.reduce_sum(batch))
    total.assign_add(left[-1])
    return {'all': tf.add_n(left)}  # as many as have been traced: one

  class Model(keras.Model):
    def train_step(self, batch):
      return step(batch)

  with strategy.scope():
    total = tf.Variable(0.0)
    model = Model()
    model.built = True
    model.compile(steps_per_execution=4)

  def ones(context=None):
    return tf.data.Dataset.from_tensors([1.0, 1.0]).repeat()

  if how == 'fit':
    model.fit(ones().take(12), epochs=2, verbose=0)
  else:
    trainer = (
      strategy if hasattr(strategy, 'train') else tfps.Coordinator(strategy)
    )
    trainer.train(step, ones, steps=24, steps_per_execution=4)
  assert float(total) == 2 * 24
  (told,) = (m for m in caplog.messages if 'stay in a loop' in m)
  assert 'Keep what one step leaves to another in a tf.Variable' in told
  if how == 'train':
    with pytest.raises(TypeError, match=r'uses .*Sum.* traced before'):
      trainer.train(step, ones, steps=30)


@one_worker
@pytest.mark.parametrize('is_read', [False, True], ids=['', 'metrics are read'])
def test_steps_that_return_other_metrics_are_refused(
  tfps_cluster, monkeypatch, is_read
):
  monkeypatch.setattr(registry_lib.of_process(), 'is_read', is_read)
  strategy = tfps.ParameterServerStrategy(
    tfps_cluster.cluster, wire=tfps.Wire(unroll=2)
  )
  names = iter('ab')
  with (
    tfps.Coordinator(strategy, timeout_secs=60) as coordinator,
    pytest.raises(ValueError, match=r"\('b',\) after \('a',\)\. Return those"),
  ):
    coordinator.train(
      lambda batch: {next(names): 1.0},
      lambda context: tf.data.Dataset.range(4),
      steps=4,
      steps_per_execution=4,
    )


@one_worker
def test_metrics_may_be_read_first_while_steps_are_traced(
  tfps_cluster, monkeypatch
):
  registry = registry_lib.of_process()
  monkeypatch.setattr(registry, 'is_read', False)
  strategy = tfps.ParameterServerStrategy(
    tfps_cluster.cluster, wire=tfps.Wire(unroll=2)
  )
  traced = []

  def step(batch):
    registry.is_read = bool(traced)
    traced.append(batch)
    return {'loss': 1.0}

  with tfps.Coordinator(strategy, timeout_secs=60) as coordinator:
    coordinator.train(
      step,
      lambda context: tf.data.Dataset.range(4),
      steps=4,
      steps_per_execution=4,
    )
  assert len(traced) == 2


@one_worker
@pytest.mark.parametrize('unroll', turns.rarely([1, 2], but=[2]))
def test_any_number_of_steps_is_traced_once(tfps_cluster, unroll):
  strategy = tfps.ParameterServerStrategy(
    tfps_cluster.cluster, wire=tfps.Wire(unroll=unroll)
  )
  with strategy.scope():
    model, own = _model(8, metrics=['mae'])  # which need not be traced again
  model.fit(_X, _Y, batch_size=_BATCH, shuffle=False, verbose=0)  # 8 and 5
  steps, rest = unroll, 5 % unroll
  traced = steps + (steps + rest if rest else 0)
  assert own.num_calls == traced
  model.fit(_X, _Y, batch_size=_BATCH, epochs=4, shuffle=False, verbose=0)
  model.fit(_X[:8], _Y[:8], batch_size=_BATCH, shuffle=False, verbose=0)
  assert own.num_calls == traced
  assert int(model.optimizer.iterations) == 13 + 4 * 13 + 2


@one_worker
@pytest.mark.parametrize('has_recovery', [False, True])
def test_batches_that_cannot_be_stacked_are_done_one_by_one(
  tfps_cluster, tmp_path, has_recovery
):
  strategy = tfps.ParameterServerStrategy(
    tfps_cluster.cluster,
    recovery=tfps.Recovery(tmp_path) if has_recovery else None,
  )
  with strategy.scope():
    total = tf.Variable(0.0)

    class Model(keras.Model):
      def train_step(self, data):
        total.assign_add(tf.reduce_sum(data))
        return {'sum': tf.reduce_sum(data)}

    model = Model()
    model.built = True
    model.compile(steps_per_execution=3)
  rows = tf.ragged.constant([[1.0], [2.0, 3.0], [], [4.0], [5.0]])
  dataset = tf.data.Dataset.from_tensor_slices(rows).batch(2)
  history = model.fit(dataset, verbose=0).history
  assert float(total) == 15
  assert float(history['sum'][0]) == 5


@one_worker
def test_a_coordinators_steps_are_traced_once(tfps_cluster):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  with strategy.scope():
    total = tf.Variable(0.0)
  step = _counting_calls(total.assign_add)

  def dataset_fn(context):
    del context
    return tf.data.Dataset.range(1, 1000)

  with tfps.Coordinator(strategy) as coordinator:
    result = coordinator.train(
      step, dataset_fn, steps=17, steps_per_execution=5, log_every_secs=1e6
    )
  assert step.num_calls == 1
  assert result.step == 17
  assert float(total) == sum(range(1, 18))
  # The mean over executions of 5, 5, 5 and 2 steps.
  assert result.metrics['batch'] == pytest.approx(9)


@one_worker
def test_values_that_a_step_returns_are_those_of_the_last(tfps_cluster):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)

  class Model(keras.Sequential):
    def train_step(self, data):
      logs = super().train_step(data)
      x, _ = data
      first = x[0, 0]
      return {
        **logs,
        'first': first,
        'vector': x[0],
        'text': tf.strings.as_string(first),
        'rows': tf.gather(x, tf.where(x[:, 0] >= 0)[:, 0]),
      }

  with strategy.scope():
    model = Model([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile('sgd', 'mse', steps_per_execution=5)
  found = model.fit(_X, _Y, batch_size=_BATCH, shuffle=False, verbose=0).history
  last = _X[12 * _BATCH :]
  assert float(found['first'][0]) == last[0, 0]
  np.testing.assert_array_equal(found['vector'][0], last[0])
  np.testing.assert_array_equal(found['rows'][0], last)
  text = np.asarray(found['text'][0]).item()
  assert float(text) == pytest.approx(last[0, 0], rel=1e-5)


@one_worker
def test_a_step_is_logged_on_its_ps_without_a_round_trip(
  tfps_cluster, tmp_path
):
  strategy = tfps.ParameterServerStrategy(
    tfps_cluster.cluster, recovery=tfps.Recovery(tmp_path)
  )
  with strategy.scope():
    total = tf.Variable(0.0)
    count = tf.Variable(0, dtype=tf.int64)
    dataset = tf.data.Dataset.from_tensors(1.0).repeat()

    def step(batch):
      total.assign_add(batch)

    source = sources.Iterated(tf.data.IteratorSpec(dataset.element_spec))
    program = step_program.StepProgram(
      strategy, step, source, global_step=count, full=4
    )
    to_do = program.execution(4)
  graphs = [to_do.function.graph, *_graphs_within(to_do.function.graph)]
  marks = [
    operation
    for graph in graphs
    for operation in graph.get_operations()
    if operation.type == 'ResourceScatterUpdate'
  ]
  assert len(marks) > 1  # of a step, and of the count
  for mark in marks:
    assert 'AssignAddVariableOp' in _types_before(mark)
  # What the count and its mark get from the worker does not wait for anything.
  for name in ('AssignAddVariableOp', 'ResourceScatterUpdate'):
    (last,) = (op for op in graphs[0].get_operations() if op.type == name)
    assert not _control_inputs_elsewhere(last)


def _types_before(operation):
  """Types of operations that it waits for without leaving its device."""
  here = [
    *operation.control_inputs,
    *(t.op for t in operation.inputs if t.op.device == operation.device),
  ]
  found = {before.type for before in here}
  return found.union(*map(_types_before, here))


def _control_inputs_elsewhere(operation):
  """What the inputs of an operation that come from the worker wait for."""
  found = []
  for tensor in operation.inputs:
    if 'ps' not in tensor.op.device:
      found += tensor.op.control_inputs
    found += _control_inputs_elsewhere(tensor.op)
  return found


def _graphs_within(graph):
  for function in graph._functions.values():
    if (inner := getattr(function, 'graph', None)) is not None:
      yield inner
      yield from _graphs_within(inner)


@one_worker
@pytest.mark.parametrize('how', ['fit', 'train'])
def test_garbage_is_looked_for_rarely_while_a_step_is_traced(tfps_cluster, how):
  found = []

  def note(*values):
    found.append(gc.get_threshold()[0])
    return tf.reduce_sum(tf.cast(values[-1], tf.float32))

  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  before = gc.get_threshold()
  gc.set_threshold(10_000)
  try:
    if how == 'fit':
      with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile('sgd', note, run_eagerly=False)
      model.fit(_X, _Y, verbose=0)
    else:
      with tfps.Coordinator(strategy) as coordinator:
        coordinator.train(
          lambda batch: {'loss': note(batch)},
          lambda context: tf.data.Dataset.range(9),
          steps=2,
        )
    assert gc.get_threshold()[0] == 10_000
  finally:
    gc.set_threshold(*before)
  assert found[-1] == 100_000  # Keras has called it before, to build the model
