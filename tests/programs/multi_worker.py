"""A program for TensorFlow's own multi-worker strategy, but for one line.

Usage: multi_worker.py FOLDER, with TF_CONFIG. It follows the tutorials of
TensorFlow: a convolutional network with a normalization of batches, `fit` with
a global batch size and callbacks, checkpoints of the chief, and a custom loop.
"""

import json
import os
import pathlib
import sys

import keras
import numpy as np
import tensorflow as tf

import tfps

PER_WORKER_BATCH, STEPS, EPOCHS = 16, 10, 3


def dataset(batch_size: int) -> tf.data.Dataset:
  random = np.random.default_rng(0)
  labels = random.integers(3, size=240)
  images = random.random((240, 12, 12), 'f') / 4
  images[np.arange(240), 4 * labels] += 1  # a bright row
  examples = tf.data.Dataset.from_tensor_slices((images, labels))
  return examples.shuffle(240, seed=1).repeat().batch(batch_size)


def make_model() -> keras.Model:
  model = keras.Sequential(
    [
      keras.layers.Input((12, 12)),
      keras.layers.Reshape((12, 12, 1)),
      keras.layers.Conv2D(4, 3, activation='relu'),
      keras.layers.BatchNormalization(),
      keras.layers.Flatten(),
      keras.layers.Dropout(0.1),
      keras.layers.Dense(3),
    ]
  )
  model.compile(
    optimizer=keras.optimizers.Adam(0.01),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=['accuracy'],
  )
  return model


def fit(strategy: tf.distribute.Strategy, folder: pathlib.Path) -> None:
  num_workers = len(json.loads(os.environ['TF_CONFIG'])['cluster']['worker'])
  multi_worker_dataset = dataset(PER_WORKER_BATCH * num_workers)
  with strategy.scope():
    model = make_model()
  resolver = strategy.cluster_resolver
  task_type, task_id = resolver.task_type, resolver.task_id
  own = folder / f'{task_type}_{task_id}'
  history = model.fit(
    multi_worker_dataset,
    epochs=EPOCHS,
    steps_per_epoch=STEPS,
    validation_data=dataset(48).take(5),
    callbacks=[
      keras.callbacks.BackupAndRestore(own / 'backup'),
      keras.callbacks.ModelCheckpoint(own / 'best.keras'),
      keras.callbacks.ReduceLROnPlateau('loss', patience=0, min_delta=9.0),
    ],
    verbose=0,
  )
  print('history', json.dumps(history.history), flush=True)
  values = [float(np.sum(np.abs(w))) for w in model.get_weights()]
  print('weights', json.dumps(values), flush=True)
  checkpoint = tf.train.Checkpoint(model=model)
  manager = tf.train.CheckpointManager(checkpoint, own / 'ckpt', max_to_keep=1)
  manager.save()
  checkpoint.restore(manager.latest_checkpoint).assert_consumed()
  model.save(own / 'model.keras')
  loaded = keras.models.load_model(own / 'model.keras')
  x, _ = next(iter(dataset(8)))
  np.testing.assert_allclose(loaded(x), model(x), atol=1e-5)
  print('evaluate', model.evaluate(dataset(48).take(5), verbose=0), flush=True)


def loop(strategy: tf.distribute.Strategy) -> None:
  global_batch_size = PER_WORKER_BATCH * strategy.num_replicas_in_sync
  with strategy.scope():
    model = make_model()
    optimizer = keras.optimizers.RMSprop(0.001)
    loss_object = keras.losses.SparseCategoricalCrossentropy(
      from_logits=True, reduction=None
    )
    accuracy = keras.metrics.SparseCategoricalAccuracy()

  def dataset_fn(context: tf.distribute.InputContext) -> tf.data.Dataset:
    batch_size = context.get_per_replica_batch_size(global_batch_size)
    return dataset(batch_size).shard(
      context.num_input_pipelines, context.input_pipeline_id
    )

  data = strategy.distribute_datasets_from_function(dataset_fn)

  @tf.function
  def train_step(iterator: tf.data.Iterator) -> tf.Tensor:
    def step_fn(inputs: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
      x, y = inputs
      with tf.GradientTape() as tape:
        predictions = model(x, training=True)
        loss = tf.nn.compute_average_loss(
          loss_object(y, predictions), global_batch_size=global_batch_size
        )
      gradients = tape.gradient(loss, model.trainable_variables)
      optimizer.apply_gradients(
        zip(gradients, model.trainable_variables, strict=True)
      )
      accuracy.update_state(y, predictions)
      return loss

    per_replica_losses = strategy.run(step_fn, args=(next(iterator),))
    return strategy.reduce(
      tf.distribute.ReduceOp.SUM, per_replica_losses, axis=None
    )

  iterator = iter(data)
  losses = [float(train_step(iterator)) for _ in range(2 * STEPS)]
  print('losses', json.dumps(losses), flush=True)
  values = [float(np.sum(np.abs(w))) for w in model.get_weights()]
  print('loop weights', json.dumps(values), flush=True)


def main(folder: str) -> None:
  strategy = tfps.AllReduceStrategy()  # MultiWorkerMirroredStrategy()
  loop(strategy)
  fit(strategy, pathlib.Path(folder))
  if strategy.cluster_resolver.task_id == 0:  # no other worker is needed
    with strategy.scope():
      model = make_model()
    print('predicted', list(model.predict(dataset(6).take(1), verbose=0).shape))


if __name__ == '__main__':
  main(sys.argv[1])
