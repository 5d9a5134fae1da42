"""What is not under our strategies goes Keras' own way, to the last bit."""

import functools
import inspect
import pathlib
import runpy

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support import turns
import tfps
from tfps import testing

STRATEGIES = {
  'none': tf.distribute.get_strategy,
  'mirrored': lambda: tf.distribute.MirroredStrategy(['CPU:0']),
}


@pytest.fixture(scope='module', autouse=True)
def cluster():
  with testing.InProcessCluster(num_workers=1, num_ps=1) as servers:
    with tfps.ParameterServerStrategy(servers.cluster).scope():
      keras.Variable(1.0)
    yield servers.cluster


@functools.cache
def _replaced():
  """Owners in Keras and names there that are ours, once all is replaced."""
  root = pathlib.Path(__file__).parents[3]
  tool = runpy.run_path(str(root / 'tools' / 'run_keras_tests.py'))
  return list(tool['replaced']())


def _theirs(owner, name):
  ours = getattr(owner, name)
  if inspect.isclass(ours):
    return ours.__mro__[1]
  # What Keras itself has wrapped stays so.
  folder = str(pathlib.Path(tfps.__file__).parent)
  return inspect.unwrap(
    ours, stop=lambda each: not each.__code__.co_filename.startswith(folder)
  )


def test_what_is_replaced_is_still_at_hand():
  names = {name for _, name in _replaced()}
  assert {'assign_add', 'take', 'TFEpochIterator'} <= names
  for owner, name in _replaced():
    assert _theirs(owner, name) is not getattr(owner, name)


def test_what_is_replaced_takes_keywords_as_before():
  for owner, name in _replaced():
    ours = inspect.signature(getattr(owner, name), follow_wrapped=False)
    kinds = {parameter.kind for parameter in ours.parameters.values()}
    theirs = inspect.signature(_theirs(owner, name)).parameters
    takes_any = inspect.Parameter.VAR_KEYWORD in kinds
    assert takes_any or list(ours.parameters) == list(theirs), name


def _train(strategy):
  """The logs and the weights of a model that uses all that we replace."""
  keras.utils.set_random_seed(1)
  x = np.random.default_rng(0).integers(0, 8, [20, 3])
  y = np.sum(x, axis=1, keepdims=True)
  with strategy.scope():
    model = keras.Sequential(
      [
        keras.layers.Embedding(8, 4),
        keras.layers.Flatten(),
        keras.layers.Dropout(0.5),
        keras.layers.Dense(1),
      ]
    )
    model.compile(
      keras.optimizers.Nadam(weight_decay=0.01, use_ema=True),
      'mse',
      metrics=['mae'],
      steps_per_execution=2,
    )
  logs = model.fit(x, y, batch_size=4, epochs=2, verbose=0).history
  logs['test'] = model.evaluate(x, y, verbose=0)
  logs['predicted'] = model.predict(x, verbose=0).tolist()
  return logs, model.get_weights()


@functools.cache
def _trained_by_keras_alone(name):
  with pytest.MonkeyPatch.context() as patch:
    for owner, attribute in _replaced():
      patch.setattr(owner, attribute, _theirs(owner, attribute))
    return _train(STRATEGIES[name]())


@pytest.mark.parametrize('name', turns.rarely(list(STRATEGIES), but=['none']))
def test_a_model_trains_as_by_keras_alone(name):
  logs, weights = _train(STRATEGIES[name]())
  expected_logs, expected_weights = _trained_by_keras_alone(name)
  assert logs == expected_logs
  for ours, theirs in zip(weights, expected_weights, strict=True):
    np.testing.assert_array_equal(ours, theirs)


def test_within_our_scope_variables_of_another_strategy_are_its_own():
  other = tf.distribute.OneDeviceStrategy('CPU:0')
  with other.scope():
    variable = keras.Variable(np.ones([2], 'f'))
  variable.assign_add([1.0, 2.0])
  np.testing.assert_array_equal(variable.numpy(), [2.0, 3.0])
  assert 'job:ps' not in variable.value.device


def _operations(strategy):
  """The types of the operations of a lookup and an addition."""
  with strategy.scope():
    table = keras.Variable(np.ones([4, 2], 'f'))

  @tf.function
  def use():
    table.assign_add(tf.ones([4, 2]))
    return keras.ops.take(table, [1, 2], axis=0)

  graph = use.get_concrete_function().graph
  return {operation.type for operation in graph.get_operations()}


def test_tensorflows_own_strategy_for_ps_keeps_keras_ways(cluster):
  theirs = tf.distribute.ParameterServerStrategy(cluster.resolver())
  assert {'ReadVariableOp', 'AssignVariableOp'} <= _operations(theirs)
  assert not {'ResourceGather', 'AssignAddVariableOp'} & _operations(theirs)
  ours = tfps.ParameterServerStrategy(cluster)
  assert {'ResourceGather', 'AssignAddVariableOp'} <= _operations(ours)
  assert 'ReadVariableOp' not in _operations(ours)
