"""Canaries for what `tfps._compat.checkpoint_graph` relies upon."""

import inspect

import keras
import pytest
import tensorflow as tf
from tensorflow.python.checkpoint import checkpoint as checkpoint_lib

from tfps._compat import checkpoint_graph

_HERE = tf.train.CheckpointOptions(experimental_io_device='/device:CPU:0')


def test_tensorflow_restores_by_what_is_replaced():
  coordinator = checkpoint_lib._CheckpointRestoreCoordinator
  assert (
    'tensor_saveables'
    in inspect.signature(
      inspect.unwrap(coordinator.restore_saveables)
    ).parameters
  )


_OPTIMIZERS = {
  'Adam': lambda: keras.optimizers.Adam(amsgrad=True),
  'Adagrad': keras.optimizers.Adagrad,
  'Ftrl': keras.optimizers.Ftrl,
  'SGD': lambda: keras.optimizers.SGD(momentum=0.9, use_ema=True),
  'RMSprop': lambda: keras.optimizers.RMSprop(momentum=0.9, centered=True),
  'Lion': lambda: keras.optimizers.Lion(gradient_accumulation_steps=2),
  'scaled': lambda: keras.optimizers.LossScaleOptimizer(
    keras.optimizers.Adadelta()
  ),
}


@pytest.mark.parametrize('kind', list(_OPTIMIZERS))
def test_slots_are_known_by_their_lists(tmp_path, kind):
  optimizer = _OPTIMIZERS[kind]()
  variables = [keras.Variable(tf.zeros([3, 2])), keras.Variable(tf.zeros([2]))]
  optimizer.build(variables)
  root = tf.train.Checkpoint(optimizer=optimizer, variables=variables)
  matches = checkpoint_graph.match(root.write(str(tmp_path / 'x'), _HERE), root)
  assert len(matches.slots) == sum(
    v.shape.rank > 0 for v in optimizer.variables
  )
  for slot in optimizer.variables:
    if slot.shape.rank:
      owner = matches.slots[id(slot.value)]
      assert owner is variables[0 if slot.shape.rank == 2 else 1].value
  assert not matches.missing
  assert not matches.unused
