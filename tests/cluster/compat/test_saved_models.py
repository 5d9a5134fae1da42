"""Exports that would name tasks, and have values twice."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps
from tfps._compat import saved_models

pytestmark = pytest.mark.tfps_cluster(workers=1, ps=2)


def test_an_export_is_made_fit_for_any_process(tfps_cluster, tmp_path):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  with strategy.scope():
    ids = keras.Input((), dtype='int64')
    model = keras.Model(ids, tfps.embeddings.Embedding(3)(ids))
    model.export(tmp_path / 'export', verbose=False)
    exported = (tmp_path / 'export/saved_model.pb').read_bytes()
    assert b'/job:' not in exported
    traced = tf.function(lambda ids: model(ids, training=False))
    spec = tf.TensorSpec([None], tf.int64)
    graph = traced.get_concrete_function(spec).graph
    # What would be in the file.
    assert any('/job:ps' in each.device for each in graph.get_operations())
    assert tf.saved_model.load(tmp_path / 'export')._all_variables
    loaded = saved_models.load(tmp_path / 'export')  # within the scope
    assert not loaded._all_variables
    assert '/job:chief' in loaded.variables[0].device
    saved_models.save(loaded, tmp_path / 'saved')
  saved = str(tmp_path / 'saved/variables/variables')
  names = [name for name, _ in tf.train.list_variables(saved)]
  assert not any(name.startswith('_all_variables') for name in names)
  keys = tf.constant([1, 2**40], tf.int64)
  expected = model(keys, training=False)
  strategy.close()
  served = tf.saved_model.load(tmp_path / 'saved')
  np.testing.assert_array_equal(served.serve(keys), expected)
