"""Canaries for what `tfps._compat.keras_optimizers` relies upon."""

import importlib
import inspect

import keras
from keras.src.backend.tensorflow import optimizer
from keras.src.optimizers import base_optimizer
from keras.src.optimizers import loss_scale_optimizer
from keras.src.optimizers import nadam
import numpy as np
import pytest
import tensorflow as tf

from tfps._compat import keras_optimizers as compat

Base = base_optimizer.BaseOptimizer
TFOptimizer = optimizer.TFOptimizer


@pytest.fixture(autouse=True)
def _replaced():
  compat.take_part()


REPLACED = {
  '_backend_apply_gradients': ['self', 'grads', 'trainable_variables'],
  '_all_reduce_sum_gradients': ['self', 'grads_and_vars'],
  '_clip_gradients': ['self', 'grads'],
  '_distributed_tf_update_step': [
    'self',
    'distribution',
    'grads_and_vars',
    'learning_rate',
  ],
  '_apply_weight_decay': ['self', 'variables'],
  '_update_model_variables_moving_average': ['self', 'trainable_variables'],
  '_overwrite_model_variables_with_average_value': [
    'self',
    'trainable_variables',
  ],
}


def test_these_are_what_we_replace():
  assert set(compat._FUNCTIONS) == set(REPLACED)


@pytest.mark.parametrize('name', REPLACED)
def test_a_method_that_we_replace_takes_the_same_arguments(name):
  theirs = inspect.unwrap(getattr(TFOptimizer, name))
  assert list(inspect.signature(theirs).parameters) == REPLACED[name]
  assert theirs is not getattr(TFOptimizer, name)


def test_nadams_own_method_takes_the_same_arguments():
  theirs = inspect.unwrap(nadam.Nadam._backend_update_step)
  assert list(inspect.signature(theirs).parameters) == [
    'self',
    'grads',
    'trainable_variables',
    'learning_rate',
  ]
  assert 'self.assign(\n            self._u_product,' in inspect.getsource(
    theirs
  )


_LOSS_SCALING = {
  'apply': ['self', 'grads', 'trainable_variables'],
  'check_finite': ['self', 'grads'],
  'scale_loss': ['self', 'loss'],
  '_stateful_handle_finite_grads': ['self', 'grads', 'trainable_variables'],
  '_stateful_handle_non_finite_grads': ['self'],
}


def test_methods_of_loss_scaling_take_the_same_arguments():
  assert set(compat._LOSS_SCALING) == set(_LOSS_SCALING)
  for name, arguments in _LOSS_SCALING.items():
    own = getattr(loss_scale_optimizer.LossScaleOptimizer, name)
    theirs = inspect.unwrap(own)
    assert list(inspect.signature(theirs).parameters) == arguments
    assert theirs is not own


def test_loss_scaling_counts_and_scales_in_what_is_replaced():
  theirs = loss_scale_optimizer.LossScaleOptimizer
  everything = inspect.getsource(theirs)
  replaced = ''.join(
    inspect.getsource(inspect.unwrap(getattr(theirs, name)))
    for name in _LOSS_SCALING
  )
  for change in ('self.step_counter.assign', 'self.dynamic_scale.assign'):
    stateless = inspect.getsource(theirs._stateless_handle_finite_grads)
    stateless += inspect.getsource(theirs._stateless_handle_non_finite_grads)
    assert everything.count(change) == (
      replaced.count(change) + stateless.count(change)
    )


# A caller that does otherwise would go past what we replace.
SOURCES = {
  'apply ends in this': (
    Base.apply,
    'self._backend_apply_gradients(grads, trainable_variables)',
  ),
  'accumulation, updates and averages are in it': (
    inspect.unwrap(TFOptimizer._backend_apply_gradients),
    'self.gradient_accumulation_steps',
  ),
  'which decays weights': (
    inspect.unwrap(TFOptimizer._backend_apply_gradients),
    'self._apply_weight_decay(trainable_variables)',
  ),
  'and updates variables': (
    inspect.unwrap(TFOptimizer._backend_apply_gradients),
    'self._backend_update_step(',
  ),
  'and the averages of weights': (
    inspect.unwrap(TFOptimizer._backend_apply_gradients),
    'self._update_model_variables_moving_average(',
  ),
  'and puts these in their places': (
    inspect.unwrap(TFOptimizer._backend_apply_gradients),
    'self._overwrite_model_variables_with_average_value(',
  ),
  'an update comes by this, without merging': (
    TFOptimizer._backend_update_step,
    'self._distributed_tf_update_step,',
  ),
  'and counts once the gradients are applied': (
    Base.apply,
    'self._iterations.assign_add(1)',
  ),
  'an update of one variable is this': (
    inspect.unwrap(TFOptimizer._distributed_tf_update_step),
    'self.update_step(grad, var, learning_rate)',
  ),
  'epochs end with this': (
    Base.finalize_variable_values,
    'self._overwrite_model_variables_with_average_value(',
  ),
}


@pytest.mark.parametrize('name', SOURCES)
def test_keras_code_is_what_we_replace(name):
  function, text = SOURCES[name]
  assert text in inspect.getsource(function)


def test_an_optimizer_remembers_the_strategy_of_its_scope():
  strategy = tf.distribute.OneDeviceStrategy('CPU:0')
  with strategy.scope():
    inside = keras.optimizers.SGD()
  assert inside._distribution_strategy is strategy
  outside = keras.optimizers.SGD()._distribution_strategy
  assert outside is tf.distribute.get_strategy()


def test_without_a_strategy_of_ours_updates_are_keras_own():
  variable = keras.Variable(np.array([1.0, 2.0], 'f'))
  optimizer = keras.optimizers.SGD(0.5, weight_decay=0.1)
  optimizer.build([variable])
  optimizer.apply([tf.constant([1.0, 1.0])])
  np.testing.assert_allclose(variable.numpy(), [0.45, 1.4])
  # However a subclass or a user calls them.
  optimizer._apply_weight_decay(variables=[variable])
  np.testing.assert_allclose(variable.numpy(), [0.4275, 1.33])


@pytest.mark.parametrize(
  'name', ['optimizers', 'all_reduce_optimizers', 'hybrid_optimizers']
)
def test_each_strategys_module_has_all_that_replaces_methods(name):
  module = importlib.import_module(f'tfps.keras.{name}')
  wanted = {'update_by_nadam'}
  for functions in (compat._FUNCTIONS, compat._BASE, compat._LOSS_SCALING):
    wanted |= set(functions.values())
  assert wanted <= set(vars(module))
