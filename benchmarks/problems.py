"""What is learnt: the examples' models, on their data."""

from collections.abc import Callable
import dataclasses
import os
import pathlib
import sys
from typing import Any

import numpy as np
import tensorflow as tf

_EXAMPLES = pathlib.Path(__file__).parents[1] / 'examples'
_FLIGHTS_BATCH = 512
_IMAGES_BATCH = 32
_NUM_QUICK_FLIGHTS = 20_000
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
  """What to learn.

  Attributes:
    build: makes the compiled model, in a strategy's scope.
    dataset: one worker's endless batches.
    held_out: what the metric at the end is of.
    curve: what the loss is of, on the way.
  """

  build: Callable[[], Any]
  dataset: Callable[[tf.distribute.InputContext], tf.data.Dataset]
  held_out: Data
  curve: Data


def flights(*, quick: bool) -> Problem:
  """Which flights leave late, by a wide & deep model."""
  _import_from('flights')
  import data
  import features
  import model

  found = data.load()
  if quick:
    found = found.sample(_NUM_QUICK_FLIGHTS, random_state=1)
  split = features.split(found)
  held_out = Data(split.held_out.inputs(), split.held_out.late)
  return Problem(
    build=lambda: model.build(split.sizes, split.training.numbers.shape[1]),
    dataset=lambda context: split.training.dataset(
      context, batch_size=_FLIGHTS_BATCH, seed=1
    ),
    held_out=held_out,
    curve=held_out,
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
  return Problem(
    build=train.convnet,
    dataset=lambda context: _batches(training.pixels, training.labels, context),
    held_out=Data(held_out.pixels, held_out.labels),
    curve=Data(some.pixels, some.labels),
  )


PROBLEMS = {'flights': flights, 'images': images}


def _batches(
  pixels: np.ndarray, labels: np.ndarray, context: tf.distribute.InputContext
) -> tf.data.Dataset:
  """One worker's endless batches of its share."""
  rows = slice(context.input_pipeline_id, None, context.num_input_pipelines)
  return (
    tf.data.Dataset.from_tensor_slices((pixels[rows], labels[rows]))
    .shuffle(len(labels[rows]), seed=1 + context.input_pipeline_id)
    .repeat()
    .batch(_IMAGES_BATCH, drop_remainder=True)
    .prefetch(4)
  )


def _import_from(example: str) -> None:
  """Lets an example's files be imported; they import each other so."""
  sys.path.insert(0, str(_EXAMPLES / example))
