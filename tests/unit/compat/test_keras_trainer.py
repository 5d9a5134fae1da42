"""Canaries for what `_compat.keras_trainer` and `keras_data` rely upon."""

import inspect

import keras
from keras.src.backend.tensorflow import trainer
from keras.src.trainers import epoch_iterator
import numpy as np
import pytest
import tensorflow as tf

from tfps._compat import keras_data
from tfps._compat import keras_trainer

Trainer = trainer.TensorFlowTrainer


@pytest.fixture(autouse=True)
def _replaced():
  keras_trainer.take_part()


REPLACED = {
  'make_train_function': ['self', 'force'],
  'make_test_function': ['self', 'force'],
  'make_predict_function': ['self', 'force'],
  'get_metrics_result': ['self'],
  'reset_metrics': ['self'],
}


@pytest.mark.parametrize('name', REPLACED)
def test_a_method_that_we_replace_takes_the_same_arguments(name):
  theirs = inspect.unwrap(getattr(Trainer, name))
  assert list(inspect.signature(theirs).parameters) == REPLACED[name]
  assert theirs is not getattr(Trainer, name)


KERAS_EPOCH_ITERATOR = next(  # be it replaced by now or not
  each
  for each in trainer.TFEpochIterator.__mro__
  if each.__module__ == trainer.__name__
)

SOURCES = {
  'fit makes its function before the epochs': (
    Trainer.fit,
    'self.make_train_function()',
  ),
  'fit calls it with an iterator': (
    Trainer.fit,
    'logs = self.train_function(iterator)',
  ),
  'fit resets metrics at the start of an epoch': (
    Trainer.fit,
    'self.reset_metrics()',
  ),
  'fit reads metrics at the end of an epoch': (
    Trainer.fit,
    'self._get_metrics_result_or_logs(logs)',
  ),
  'and reads them by a method that we replace': (
    Trainer._get_metrics_result_or_logs,
    'self.get_metrics_result()',
  ),
  'fit finds the epoch iterator by its name in the module': (
    Trainer.fit,
    'epoch_iterator = TFEpochIterator(',
  ),
  'evaluate does, too': (Trainer.evaluate, 'TFEpochIterator('),
  'predict does, too': (Trainer.predict, 'TFEpochIterator('),
  'fit begins anew after a look at the first batch': (
    Trainer.fit,
    'epoch_iterator.reset()',
  ),
  'a test function is called with an iterator': (
    Trainer.evaluate,
    'logs = self.test_function(iterator)',
  ),
  'the epoch iterator iterates over what it calls a dataset': (
    inspect.unwrap(trainer.TFEpochIterator)._get_iterator,
    'return self._distributed_dataset',
  ),
  'the end of an epoch waits by a method that we replace': (
    KERAS_EPOCH_ITERATOR.catch_stop_iteration,
    'self.tf_sync()',
  ),
  'where batches run out, later epochs have as many': (
    epoch_iterator.EpochIterator.catch_stop_iteration,
    'self._num_batches = self._steps_seen',
  ),
  'and a warning is given by a method that we replace': (
    epoch_iterator.EpochIterator.catch_stop_iteration,
    'self._interrupted_warning()',
  ),
  'each epoch iterates anew unless it has a number of steps': (
    epoch_iterator.EpochIterator._enumerate_iterator,
    'iterator = iter(self._get_iterator())',
  ),
  'which waits for what others have begun': (
    inspect.unwrap(trainer.TFEpochIterator).tf_sync,
    'async_wait()',
  ),
  'the epoch iterator takes adapters as they are': (
    epoch_iterator.EpochIterator.__init__,
    'data_adapters.get_data_adapter(',
  ),
}


@pytest.mark.parametrize('name', SOURCES)
def test_keras_code_is_what_we_replace(name):
  function, text = SOURCES[name]
  assert text in inspect.getsource(function)


def _model():
  keras.utils.set_random_seed(1)
  model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
  model.compile('sgd', 'mse')
  return model


def test_a_model_keeps_its_functions_and_its_strategy_by_these_names():
  model = _model()
  for kind in ('train', 'test', 'predict'):
    assert getattr(model, f'{kind}_function') is None
    made = getattr(model, f'make_{kind}_function')()
    assert getattr(model, f'{kind}_function') is not None
    assert made is None or made is getattr(model, f'{kind}_function')
  assert model._distribute_strategy is None


def test_a_model_remembers_the_strategy_of_its_scope():
  strategy = tf.distribute.OneDeviceStrategy('CPU:0')
  with strategy.scope():
    assert _model()._distribute_strategy is strategy


def test_epoch_iterators_take_these_arguments():
  theirs = trainer.TFEpochIterator.__mro__[1]
  names = list(inspect.signature(theirs.__init__).parameters)
  assert names[:2] == ['self', 'distribute_strategy']
  base = inspect.signature(epoch_iterator.EpochIterator.__init__).parameters
  assert {'x', 'steps_per_epoch'} <= set(base)
  assert theirs.__mro__[1] is epoch_iterator.EpochIterator


def _iterator(x, **kwargs):
  return trainer.TFEpochIterator(tf.distribute.get_strategy(), x=x, **kwargs)


def test_the_trainer_takes_an_adapter_for_what_it_is():
  class Adapter(keras_data.DataAdapter):
    num_batches = None

    def get_tf_dataset(self):
      return tf.data.Dataset.range(3)

  adapter = Adapter()
  iterator = _iterator(adapter)
  assert iterator.data_adapter is adapter


def test_without_a_strategy_of_ours_an_epoch_is_keras_own():
  iterator = _iterator(np.arange(5.0), batch_size=2)
  batches = [next(taken[-1]) for taken in iterator]
  sizes = [keras.tree.flatten(batch)[0].shape[0] for batch in batches]
  assert sizes == [2, 2, 1]


def test_it_is_known_when_only_shapes_are_wanted():
  class Asking(keras.layers.Layer):
    def call(self, inputs):
      asked.append(keras_trainer.wants_shapes_only())
      return inputs + 1.0

  asked = []
  inputs = keras.Input([2])
  model = keras.Model(inputs, Asking()(inputs))
  model.compile('sgd', 'mse')
  assert asked
  assert all(asked)
  asked.clear()
  model.predict(np.zeros([1, 2]), verbose=0)
  assert asked
  assert not any(asked)
