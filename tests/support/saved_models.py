"""Ways to save a Keras model and to load it into a new one."""

import keras
import tensorflow as tf


def as_keras(model, path, make):
  del make  # the file has the model
  model.save(path / 'model.keras')
  return lambda: keras.models.load_model(path / 'model.keras')


def as_weights(model, path, make):
  model.save_weights(path / 'model.weights.h5')

  def load():
    other = _built(make())
    other.load_weights(path / 'model.weights.h5')
    return other

  return load


def as_checkpoint(model, path, make):
  saved = _checkpoint(model).save(path / 'checkpoint')

  def load():
    other = _built(make())
    _checkpoint(other).restore(saved).assert_consumed()
    return other

  return load


def as_checkpoint_of_slots_to_come(model, path, make):
  """The optimizer gets its slots after the restore."""
  saved = _checkpoint(model).save(path / 'checkpoint')

  def load():
    other = make()
    status = _checkpoint(other).restore(saved)
    _built(other)
    status.assert_consumed()
    return other

  return load


def _checkpoint(model):
  return tf.train.Checkpoint(model=model, optimizer=model.optimizer)


def _built(model):
  model.optimizer.build(model.trainable_variables)
  return model
