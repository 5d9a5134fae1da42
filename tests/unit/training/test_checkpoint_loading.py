"""Weights of models that an evaluator loads from checkpoints."""

import os

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps
from tfps.training import checkpoint_files
from tfps.training import checkpoint_loading

_KEYS = np.arange(50)


def _model(num_shards):
  inputs = keras.Input((), dtype='int64')
  outputs = tfps.embeddings.Embedding(2, num_shards=num_shards)(inputs)
  model = keras.Model(inputs, outputs)
  model.compile('sgd', 'mse')
  return model


@pytest.mark.slow
def test_a_table_may_have_more_shards_than_the_checkpoint(tmp_path):
  model = _model(1)
  model.fit(_KEYS, np.ones([50, 2]), verbose=0)
  tf.train.Checkpoint(model=model).save(tmp_path / 'saved')
  (found,) = checkpoint_files.find(tmp_path)
  assert os.fspath(found.path).endswith('saved-1')
  other = _model(3)
  checkpoint_loading.load(other, found)
  np.testing.assert_array_equal(
    other.predict(_KEYS, verbose=0), model.predict(_KEYS, verbose=0)
  )
