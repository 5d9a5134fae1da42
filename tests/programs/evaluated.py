"""Trains in shards on a cluster, beside an evaluator of its checkpoints.

Usage: evaluated.py DIRECTORY
"""

import sys

import keras
import numpy as np
import tensorflow as tf

import tfps

EPOCHS = 2

_RANDOM = np.random.default_rng(0)
_IDS = _RANDOM.integers(0, 20, (32, 4)).astype('i')
_Y = _IDS.mean(1, keepdims=True).astype('f')


def held_out():
  return tf.data.Dataset.from_tensor_slices((_IDS[::-3], _Y[::-3])).batch(4)


def make_model():
  model = keras.Sequential(
    [
      keras.layers.Embedding(20, 3),
      keras.layers.Flatten(),
      keras.layers.BatchNormalization(),
      keras.layers.Dense(1),
    ]
  )
  model.compile('adam', 'mse', metrics=['mae'])
  return model


def main(directory: str) -> object:
  cluster = tfps.resolve_cluster()
  if cluster.task.job == 'evaluator':
    return tfps.evaluate_checkpoints(
      make_model, held_out(), directory, every_checkpoint=True, best='loss'
    )
  if cluster.task.job in ('ps', 'worker'):
    return tfps.serve(cluster)
  strategy = tfps.ParameterServerStrategy(
    cluster, tfps.partitioners.FixedShards(2)
  )
  with strategy.scope():
    model = make_model()
  manager = tf.train.CheckpointManager(
    tf.train.Checkpoint(model=model, optimizer=model.optimizer),
    directory,
    max_to_keep=EPOCHS,
  )
  save = keras.callbacks.LambdaCallback(
    on_epoch_end=lambda epoch, logs: manager.save()
  )
  model.fit(_IDS, _Y, batch_size=8, epochs=EPOCHS, verbose=0, callbacks=[save])
  return None


if __name__ == '__main__':
  main(sys.argv[1])
