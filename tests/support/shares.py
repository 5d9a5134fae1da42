"""Steps on batches, whose part in each update is told."""

import keras
import tensorflow as tf


class Shares:
  """What each batch, by its first number, has of the updates."""

  def __init__(self, strategy, total):
    with strategy.scope():
      self.visits = tf.Variable(tf.zeros([total], tf.int64), trainable=False)
      self._number = tf.Variable(tf.zeros([total], tf.float64))
      self.optimizer = keras.optimizers.SGD(1.0)
      self.optimizer.build([self._number])

  def step(self, numbers):
    ones = tf.ones_like(numbers)
    self.visits.scatter_add(tf.IndexedSlices(ones, numbers))
    with tf.GradientTape() as tape:
      loss = tf.gather(self._number, numbers[0])
    gradient = tf.convert_to_tensor(tape.gradient(loss, self._number))
    self.optimizer.apply([gradient], [self._number])

  def numpy(self):
    return -self._number.numpy()
