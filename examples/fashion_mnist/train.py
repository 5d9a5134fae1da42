"""A small convolutional network learns to tell images apart, on a cluster.

    python train.py
    python -m tfps.launch --num_workers=2 --num_ps=2 train.py

With a chief in the cluster that one trains, and workers execute its steps; with
`--num_chiefs=0` each worker trains by itself. Every task runs this file.
"""

import math
import pathlib
from typing import Any

from absl import app
from absl import flags
from absl import logging
import images
import keras
from keras import layers

import tfps
from tfps.keras import StopAtStep

_IMAGES = flags.DEFINE_enum(
  'images', 'fashion_mnist', list(images.SETS), 'What to learn.'
)
_FOLDER = flags.DEFINE_string(
  'folder', str(images.FASHION_MNIST), 'Where fashion-mnist is.'
)
_NUM_IMAGES = flags.DEFINE_integer(
  'num_images', None, 'How many images to learn from; by default all.'
)
_EPOCHS = flags.DEFINE_integer('epochs', 3, 'How often to see each image.')
_BATCH_SIZE = 128
_STEPS_PER_EXECUTION = 5
_TIMEOUT_SECS = 300.0

tfps.define_flags()


def main(_: list[str]) -> None:
  logging.set_verbosity(logging.WARNING)  # What matters here is printed.
  cluster = tfps.resolve_cluster()
  has_chief = 'chief' in (cluster.task.job, *cluster.jobs)
  if cluster.task.job in (('ps', 'worker') if has_chief else ('ps',)):
    return tfps.serve(cluster)
  if has_chief:
    train_with_coordinator(cluster)
  else:
    train_between_graphs(cluster)


def train_with_coordinator(cluster: tfps.Cluster) -> None:
  """This process, the chief, has the workers execute the steps."""
  training, held_out = data()
  strategy = tfps.ParameterServerStrategy(cluster)
  with strategy.scope():
    model = convnet()
  model.fit(
    training.pixels,
    training.labels,
    batch_size=_BATCH_SIZE,
    epochs=_EPOCHS.value,
    validation_data=(held_out.pixels, held_out.labels),
    verbose=2,
  )
  finish(strategy, model, held_out)
  strategy.close()


def train_between_graphs(cluster: tfps.Cluster) -> None:
  """This process, like each worker, trains by itself with all the images.

  Together they do as many steps as one would alone.
  """
  training, held_out = data()
  strategy = tfps.BetweenGraphStrategy(cluster)
  keras.utils.set_random_seed(strategy.input_context().input_pipeline_id)
  with strategy.scope():
    model = convnet()
  steps = math.ceil(len(training) / _BATCH_SIZE) * _EPOCHS.value
  model.fit(
    training.pixels,
    training.labels,
    batch_size=_BATCH_SIZE,
    epochs=_EPOCHS.value,
    callbacks=[StopAtStep(steps)],
    verbose=2,
  )
  strategy.barrier('trained', _TIMEOUT_SECS)
  if strategy.is_chief:
    finish(strategy, model, held_out)


def data() -> tuple[images.Images, images.Images]:
  """The images for training, as many as wanted, and those to be judged by."""
  training, held_out = images.SETS[_IMAGES.value](pathlib.Path(_FOLDER.value))
  return training.first(_NUM_IMAGES.value or len(training)), held_out


def convnet() -> keras.Model:
  """The network of Keras' introduction to images."""
  model = keras.Sequential(
    [
      keras.Input(images.SHAPE),
      layers.Conv2D(32, kernel_size=3, activation='relu'),
      layers.MaxPooling2D(),
      layers.Conv2D(64, kernel_size=3, activation='relu'),
      layers.MaxPooling2D(),
      layers.Flatten(),
      layers.Dropout(0.5),
      layers.Dense(images.NUM_CLASSES, activation='softmax'),
    ]
  )
  model.compile(
    'adam',
    'sparse_categorical_crossentropy',
    metrics=['accuracy'],
    steps_per_execution=_STEPS_PER_EXECUTION,
    jit_compile=False,
  )
  return model


def finish(strategy: Any, model: keras.Model, held_out: images.Images) -> None:
  """Says how good the model is, and what is where."""
  _, accuracy = model.evaluate(held_out.pixels, held_out.labels, verbose=0)
  print(strategy.placement_report())
  steps = int(model.optimizer.iterations)
  print(f'{steps} steps, held-out accuracy {accuracy:.4f}')


if __name__ == '__main__':
  app.run(main)
