"""What is learnt on slow links: the examples' models, on their data."""

from collections.abc import Callable
import dataclasses
import os
import pathlib
import sys
from typing import Any

import numpy as np
import tensorflow as tf

from tfps import updates

_EXAMPLES = pathlib.Path(__file__).parents[2] / 'examples'
_FLIGHTS_BATCH = 512
_IMAGES_BATCH = 32
_NUM_OF_CURVE = 2000
FOLDER_VARIABLE = 'FASHION_MNIST'


@dataclasses.dataclass(frozen=True)
class Data:
  """Examples that no model learns from.

  Attributes:
    x: the inputs.
    y: the labels.
  """

  x: Any
  y: np.ndarray


@dataclasses.dataclass(frozen=True)
class Problem:
  """What to learn, and when to look how far it has come.

  Attributes:
    title: for people.
    build: makes the compiled model, in a strategy's scope.
    dataset: one worker's endless batches.
    held_out: what the metric at the end is of.
    curve: what the loss is of, on the way.
    metric: by the name that the compiled model has for it.
    target_loss: to be reached.
    local_steps: with rates that suit the model.
    steps_per_look: steps between two looks.
    num_looks: how many, after the one at which time begins.
  """

  title: str
  build: Callable[[], Any]
  dataset: Callable[[tf.distribute.InputContext], tf.data.Dataset]
  held_out: Data
  curve: Data
  metric: str
  target_loss: float
  local_steps: updates.LocalSteps
  steps_per_look: int
  num_looks: int


def flights(*, quick: bool) -> Problem:
  """Which flights leave late, by a wide & deep model."""
  _import_from('flights')
  import data
  import features
  import model

  found = data.load()
  split = features.split(
    found.sample(20_000, random_state=1) if quick else found
  )
  held_out = Data(split.held_out.inputs(), split.held_out.late)
  return Problem(
    title='Late flights, wide & deep',
    build=lambda: model.build(split.sizes, split.training.numbers.shape[1]),
    dataset=lambda context: split.training.dataset(
      context, batch_size=_FLIGHTS_BATCH, seed=1
    ),
    held_out=held_out,
    curve=held_out,
    metric='auc',
    target_loss=0.6 if quick else 0.47,
    local_steps=updates.LocalSteps(8, inner_learning_rate=0.1),
    steps_per_look=16 if quick else 64,
    num_looks=1 if quick else 16,
  )


def images(*, quick: bool) -> Problem:
  """What garment an image shows, by a small convolutional network."""
  _import_from('fashion_mnist')
  import images
  import train

  if quick:
    training, held_out = images.digits()
  else:
    folder = os.environ.get(FOLDER_VARIABLE, str(images.FASHION_MNIST))
    training, held_out = images.fashion_mnist(pathlib.Path(folder))
  some = held_out.first(_NUM_OF_CURVE)

  def dataset(context: tf.distribute.InputContext) -> tf.data.Dataset:
    rows = slice(context.input_pipeline_id, None, context.num_input_pipelines)
    mine = training.pixels[rows], training.labels[rows]
    return (
      tf.data.Dataset.from_tensor_slices(mine)
      .shuffle(len(mine[1]), seed=1 + context.input_pipeline_id)
      .repeat()
      .batch(_IMAGES_BATCH, drop_remainder=True)
      .prefetch(4)
    )

  return Problem(
    title='Garments, convolutional network',
    build=train.convnet,
    dataset=dataset,
    held_out=Data(held_out.pixels, held_out.labels),
    curve=Data(some.pixels, some.labels),
    metric='accuracy',
    target_loss=2.0 if quick else 0.5,
    local_steps=updates.LocalSteps(8, inner_learning_rate=0.1),
    steps_per_look=16 if quick else 64,
    num_looks=1 if quick else 16,
  )


PROBLEMS = {'flights': flights, 'images': images}


def _import_from(example: str) -> None:
  """Lets an example's files be imported; they import each other so."""
  sys.path.insert(0, str(_EXAMPLES / example))
