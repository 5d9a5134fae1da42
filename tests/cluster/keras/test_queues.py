"""Keras' fit on the splits of a queue, which workers take one after another."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support import turns
import tfps
from tfps import input as input_lib
from tfps.training import unrolling

_TOTAL, _SPLIT, _BATCH = 110, 30, 4
_BATCHES = 3 * 8 + 5  # of an epoch

_MODES = {
  'coordinator': tfps.ParameterServerStrategy,
  'between graphs': tfps.BetweenGraphStrategy,
  'in graph': tfps.replication.InGraphStrategy,
}


_BY_MODE = {mode: (mode,) for mode in _MODES}


@pytest.fixture
def strategy(request, tfps_cluster):
  return _MODES[request.param](tfps_cluster.cluster)


def in_modes(*modes):
  """Runs a test in these modes, and in all with --exhaustive."""
  return pytest.mark.parametrize(
    'strategy', turns.rarely(list(_MODES), but=modes), indirect=True
  )


class Largest(keras.metrics.Metric):
  """The largest number so far, which is no sum."""

  def __init__(self):
    super().__init__(name='largest')
    self._value = self.add_weight(name='value', initializer='zeros')

  def update_state(self, values, sample_weight=None):
    largest = keras.ops.cast(keras.ops.max(values), self._value.dtype)
    self._value.assign(keras.ops.maximum(self._value, largest))

  def result(self):
    return self._value


class Visiting(keras.Model):
  """Counts on the ps how often each number is trained on."""

  def __init__(self, *more_metrics):
    super().__init__()
    self.visits = tf.Variable(tf.zeros([_TOTAL], tf.int64), trainable=False)
    self.seen = keras.metrics.Sum(name='seen')
    self.more_metrics = more_metrics
    self.built = True

  @property
  def metrics(self):
    return [self.seen, *self.more_metrics]

  def call(self, numbers):
    return numbers

  def train_step(self, numbers):
    self.visits.scatter_add(tf.IndexedSlices(tf.ones_like(numbers), numbers))
    self.seen.update_state(tf.ones_like(numbers, tf.float32))
    for metric in self.more_metrics:
      metric.update_state(numbers)
    return {metric.name: metric.result() for metric in self.metrics}


def visiting(strategy, *more_metrics, steps_per_execution=3, **kwargs):
  """A model, and a queue for it."""
  with strategy.scope():
    queue = input_lib.SplitQueue(input_lib.Ranges(_TOTAL, _SPLIT), **kwargs)
    model = Visiting(*(metric() for metric in more_metrics))
    model.compile(steps_per_execution=steps_per_execution)
  return model, lambda context: queue.dataset(context).batch(_BATCH)


class _AtEnds(keras.callbacks.Callback):
  """How often each number had been visited at the end of each epoch."""

  def __init__(self):
    super().__init__()
    self.visits = []

  def on_epoch_end(self, epoch, logs=None):
    self.visits.append(set(self.model.visits.numpy()))


@pytest.mark.parametrize(
  ('strategy', 'steps_per_execution'),
  turns.by_turns({'1': 1, '20': 20, '3': 3}, _BY_MODE, rarely=['1', '3']),
  indirect=['strategy'],
)
def test_an_epoch_is_one_of_the_queue(strategy, steps_per_execution):
  model, dataset = visiting(
    strategy, epochs=None, steps_per_execution=steps_per_execution
  )
  at_ends = _AtEnds()
  history = model.fit(dataset, epochs=3, callbacks=[at_ends], verbose=0)
  assert at_ends.visits == [{1}, {2}, {3}]
  assert history.history['seen'] == [_TOTAL] * 3


@pytest.mark.exhaustive
@in_modes('coordinator')
def test_training_ends_with_the_last_epoch_of_the_queue(strategy):
  model, dataset = visiting(strategy, Largest, epochs=2, shuffle_seed=1)
  history = model.fit(dataset, epochs=5, verbose=0)
  assert history.epoch == [0, 1]
  assert set(model.visits.numpy()) == {2}
  # A metric that does not add up is handed from worker to worker.
  assert history.history['largest'] == [_TOTAL - 1] * 2
  assert history.history['seen'] == [_TOTAL] * 2


@in_modes('between graphs')
def test_a_fit_that_begins_after_the_last_epoch_does_nothing(strategy, caplog):
  model, dataset = visiting(strategy, epochs=1)
  assert model.fit(dataset, verbose=0).history['seen'] == [_TOTAL]
  history = model.fit(dataset, epochs=3, verbose=0)
  assert history.epoch == [0]
  assert history.history == {}
  assert set(model.visits.numpy()) == {1}
  assert 'fit: there was nothing to train on' in caplog.text


@in_modes('in graph')
def test_an_epoch_may_have_a_number_of_steps(strategy):
  model, dataset = visiting(strategy, epochs=None, steps_per_execution=4)
  history = model.fit(dataset, epochs=3, steps_per_epoch=8, verbose=0)
  assert history.epoch == [0, 1, 2]
  # The last batch of a split has two numbers.
  assert 3 * 8 * 2 < model.visits.numpy().sum() <= 3 * 8 * _BATCH
  assert sum(history.history['seen']) == model.visits.numpy().sum()


class _StopAt(keras.callbacks.Callback):
  def on_train_batch_end(self, batch, logs=None):
    self.model.stop_training = batch > 4


@pytest.mark.exhaustive
@in_modes('coordinator')
def test_another_fit_goes_on_in_the_epoch(strategy):
  model, dataset = visiting(strategy, visitation='exactly_once')
  model.fit(dataset, callbacks=[_StopAt()], verbose=0)
  assert 0 < model.visits.numpy().sum() < _TOTAL
  model.fit(dataset, verbose=0)
  assert set(model.visits.numpy()) == {1}


@in_modes('coordinator')
@pytest.mark.tfps_cluster(workers=1, ps=1)
def test_one_worker_trains_as_a_single_process(strategy, monkeypatch):
  monkeypatch.setattr(unrolling, '_TIMES_BEFORE_UNROLLING', 0)
  x = np.random.default_rng(1).random((_TOTAL, 6), 'f')
  y = x.sum(axis=1, keepdims=True)

  def rows(numbers):
    return tf.gather(x, numbers), tf.gather(y, numbers)

  class Traced(keras.Sequential):
    num_traces = 0

    def train_step(self, data):
      self.num_traces += 1
      return super().train_step(data)

  def model_of():
    keras.utils.set_random_seed(7)
    model = Traced(
      [
        keras.layers.Input((6,)),
        keras.layers.Dense(5),
        keras.layers.Dropout(0.5),
        keras.layers.Dense(1),
      ]
    )
    model.compile('sgd', 'mse', metrics=['mae'], steps_per_execution=5)
    return model

  with strategy.scope():
    model = model_of()
    queue = input_lib.SplitQueue(input_lib.Ranges(_TOTAL, _SPLIT))
  history = model.fit(
    lambda context: queue.dataset(context).map(rows).batch(_BATCH), verbose=0
  )

  # In loops, in single steps at the end, and unrolled.
  assert model.num_traces == 1 + 1 + 5
  single = model_of()
  single.compile('sgd', 'mse', metrics=['mae'])
  splits = tf.data.Dataset.range(_TOTAL).batch(_SPLIT)
  batches = splits.flat_map(
    lambda split: (
      tf.data.Dataset.from_tensor_slices(split).map(rows).batch(_BATCH)
    )
  )
  wanted = single.fit(batches, verbose=0)
  for found, weights in zip(
    model.get_weights(), single.get_weights(), strict=True
  ):
    np.testing.assert_allclose(found, weights, rtol=1e-5)
  for name, values in wanted.history.items():
    np.testing.assert_allclose(history.history[name], values, rtol=1e-5)


@in_modes('between graphs')
def test_a_queue_is_for_fit_alone(strategy):
  model, dataset = visiting(strategy)
  with pytest.raises(ValueError, match='evaluate: x takes from a SplitQueue'):
    model.evaluate(dataset, verbose=0)
  with pytest.raises((ValueError, tfps.Error), match='SplitQueue'):
    model.predict(dataset, verbose=0)


class Learning(Visiting):
  """Does so by steps of which workers may make updates together."""

  def __init__(self, *more_metrics):
    super().__init__(*more_metrics)
    self.number = self.add_weight(name='number', initializer='zeros')

  def train_step(self, numbers):
    with tf.GradientTape() as tape:
      loss = self.number * 1.0
    gradient = tape.gradient(loss, self.number.value)
    self.optimizer.apply([gradient], [self.number])
    return super().train_step(numbers)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  ('updates', 'least', 'most'),
  [
    (tfps.updates.Sync(), _BATCHES, 2 * _BATCHES - 1),
    (tfps.updates.BoundedStaleness(1), 2 * _BATCHES, 2 * _BATCHES),
  ],
  ids=['Sync', 'BoundedStaleness'],
)
@pytest.mark.tfps_cluster(workers=2, ps=1)
def test_workers_that_wait_for_each_other_take_a_queue(
  tfps_cluster, updates, least, most
):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster, updates=updates)
  with strategy.scope():
    queue = input_lib.SplitQueue(input_lib.Ranges(_TOTAL, _SPLIT), epochs=None)
    model = Learning()
    model.compile('sgd', steps_per_execution=3)
  at_ends = _AtEnds()
  history = model.fit(
    lambda context: queue.dataset(context).batch(_BATCH),
    epochs=2,
    callbacks=[at_ends],
    verbose=0,
  )
  assert at_ends.visits == [{1}, {2}]
  assert history.history['seen'] == [_TOTAL] * 2
  report = strategy.updates_report()
  assert report.updates == int(model.optimizer.iterations)
  assert report.late == 0
  assert least <= report.updates <= most


@pytest.mark.exhaustive
@pytest.mark.tfps_cluster(workers=3, ps=1)
def test_one_graph_over_all_workers_takes_a_queue(tfps_cluster):
  strategy = tfps.replication.InGraphStrategy(tfps_cluster.cluster)
  with strategy.scope():
    queue = input_lib.SplitQueue(input_lib.Ranges(_TOTAL, _SPLIT), epochs=2)
    model = Learning(Largest())
    model.compile('sgd', steps_per_execution=3)
  at_ends = _AtEnds()
  history = model.fit(
    lambda context: queue.dataset(context).batch(_BATCH),
    epochs=3,
    callbacks=[at_ends],
    verbose=0,
  )
  assert at_ends.visits == [{1}, {2}]
  assert history.history['seen'] == [_TOTAL] * 2
  assert history.history['largest'] == [_TOTAL - 1] * 2
  # Three splits have eight batches and one has five.
  iterations = int(model.optimizer.iterations)
  assert 2 * _BATCHES / 3 <= iterations < 2 * _BATCHES
  assert float(model.number) == pytest.approx(-0.01 * iterations)


@in_modes('coordinator', 'in graph')
def test_splits_without_batches_are_told(strategy):
  with strategy.scope():
    queue = input_lib.SplitQueue(input_lib.Ranges(10, 5))
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile('sgd', 'mse')
  with pytest.raises(ValueError, match='none of the 2 splits has a batch'):
    model.fit(
      lambda context: queue.dataset(context).batch(8, drop_remainder=True)
    )
