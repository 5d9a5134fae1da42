"""SavedModels have what any process can use, and nothing else."""

import keras
import pytest
import tensorflow as tf

from tfps._compat import host_functions
from tfps._compat import saved_models


class _Calls(tf.Module):
  @tf.function(input_signature=[])
  def serve(self):
    return host_functions.call('of_servers', [], [tf.int64])[0]


def test_a_function_of_servers_is_named(tmp_path):
  saved_models.take_part()
  with pytest.raises(
    ValueError, match=r"calls b'tfps/of_servers', .*Leave it out of what is s"
  ):
    tf.saved_model.save(_Calls(), str(tmp_path))


class Words(keras.Model):
  """Looks up integers, and words in a table that has to be saved."""

  def __init__(self):
    super().__init__()
    self.look_up = keras.layers.StringLookup(vocabulary=['a', 'b'])

  def call(self, inputs):
    if not inputs['id'].dtype.is_integer:
      raise TypeError('missing a required argument')  # as Keras expects one
    return inputs['id'] + self.look_up(inputs['word'])


def test_a_model_that_refuses_float32_is_saved_with_its_tables(tmp_path):
  saved_models.sign_what_is_taken()
  model = Words()
  inputs = {'id': tf.constant([5], tf.int64), 'word': tf.constant(['b'])}
  assert model(inputs).numpy() == [7]
  model.train_function = train_function = object()
  signature = {
    'id': keras.InputSpec('int64', (None,)),
    'word': keras.InputSpec('string', (None,)),
  }
  model.export(tmp_path, verbose=False, input_signature=[signature])
  assert model.train_function is train_function
  assert tf.saved_model.load(tmp_path).serve(inputs).numpy() == [7]
