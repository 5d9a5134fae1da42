"""A training step of one's own, and `Coordinator.train` to have it executed.

Where `fit` does not do, a program says what a step is and tfps does the rest:
executions of many steps, checkpoints, progress. Here logistic regression learns
to read handwritten digits.

    python train.py
    python -m tfps.launch --num_workers=2 --num_ps=2 train.py
"""

from collections.abc import Mapping

from absl import app
from absl import flags
from absl import logging
import numpy as np
from sklearn import datasets
import tensorflow as tf

import tfps
from tfps.training import hooks

_STEPS = flags.DEFINE_integer('steps', 1000, 'Global step to reach.')
_DIRECTORY = flags.DEFINE_string(
  'directory', None, 'Where checkpoints go, and where to resume from.'
)
_BATCH_SIZE = 64
_LEARNING_RATE = 0.1
_NUM_HELD_OUT = 360

tfps.define_flags()


class Regression(tf.Module):
  """Multinomial logistic regression."""

  def __init__(self) -> None:
    super().__init__()
    self.weights = tf.Variable(tf.zeros([64, 10]), name='weights')
    self.biases = tf.Variable(tf.zeros([10]), name='biases')

  def __call__(self, pixels: tf.Tensor) -> tf.Tensor:
    return pixels @ self.weights + self.biases


def main(_: list[str]) -> None:
  logging.set_verbosity(logging.WARNING)  # What matters here is printed.
  cluster = tfps.resolve_cluster()
  if cluster.task.job in ('ps', 'worker'):
    return tfps.serve(cluster)
  (pixels, labels), held_out = digits()
  strategy = tfps.ParameterServerStrategy(cluster)
  with strategy.scope():
    model = Regression()

  def step(batch: tuple[tf.Tensor, tf.Tensor]) -> Mapping[str, tf.Tensor]:
    """Runs on a worker; the subtractions on the ps."""
    pixels, labels = batch
    with tf.GradientTape() as tape:
      losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels, model(pixels)
      )
      loss = tf.reduce_mean(losses)
    gradients = tape.gradient(loss, model.trainable_variables)
    for variable, gradient in zip(
      model.trainable_variables, gradients, strict=True
    ):
      variable.assign_sub(_LEARNING_RATE * gradient)
    return {'loss': loss}

  def dataset(context: tf.distribute.InputContext) -> tf.data.Dataset:
    """One worker's share, without end."""
    share = slice(context.input_pipeline_id, None, context.num_input_pipelines)
    examples = tf.data.Dataset.from_tensor_slices(
      (pixels[share], labels[share])
    )
    return examples.shuffle(2048).repeat().batch(_BATCH_SIZE)

  directory = _DIRECTORY.value
  with tfps.Coordinator(strategy, timeout_secs=120) as coordinator:
    result = coordinator.train(
      step,
      dataset,
      steps=_STEPS.value,
      steps_per_execution=20,
      checkpoint=tf.train.Checkpoint(model=model) if directory else None,
      checkpoint_dir=directory,
      hooks=[hooks.LogProgress(every_secs=1.0, log=print)],
    )
    found = np.argmax(model(held_out[0]), axis=1)
  correct = np.mean(found == held_out[1])
  print(f'{result.step} steps, held-out accuracy {correct:.3f}')


def digits() -> tuple[
  tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]
]:
  """1,797 images of 8 x 8 pixels with labels: for training, and held out."""
  x, y = datasets.load_digits(return_X_y=True)
  order = np.random.default_rng(0).permutation(len(x))
  x, y = (x[order] / 16).astype(np.float32), y[order].astype(np.int64)
  n = _NUM_HELD_OUT
  return (x[n:], y[n:]), (x[:n], y[:n])


if __name__ == '__main__':
  app.run(main)
