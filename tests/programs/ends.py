"""Trains, and ends in one of several ways while more data could be read.

Usage: ends.py STRATEGY FEED END WHEN

FEED is 'fit' of endless data, 'queue' for fit of a queue's splits, or 'train'.
END is 'return', 'raise' or 'exit'. WHEN is 'within' training or 'after' it.
"""

import sys

import keras
import tensorflow as tf

import tfps

_STRATEGIES = {
  'coordinator': tfps.ParameterServerStrategy,
  'between graphs': tfps.BetweenGraphStrategy,
  'hybrid': tfps.replication.HybridStrategy,
}


class Ending:
  """Ends the program."""

  def __init__(self, how: str, when: str) -> None:
    self._how = how
    self._is_within = when == 'within'

  def within(self, step: int) -> None:
    if self._is_within and step >= 6:
      self()

  def __call__(self) -> None:
    print('The end.', flush=True)
    print('The end.', file=sys.stderr, flush=True)
    if self._how == 'raise':
      raise ValueError('An error of the program.')
    if self._how == 'exit':
      sys.exit(3)


def main(name: str, feed: str, how: str, when: str) -> None:
  strategy = _STRATEGIES[name](tfps.resolve_cluster())
  end = Ending(how, when)
  with strategy.scope():
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile('adam', 'mse', steps_per_execution=2)
    model.optimizer.build(model.trainable_variables)
    queue = tfps.input.SplitQueue(tfps.input.Ranges(400, 20))

  def example(number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.fill([4], tf.cast(number, tf.float32) / 400), tf.ones([1])

  def endless(context: object) -> tf.data.Dataset:
    numbers = tf.data.Dataset.range(400).repeat()
    return numbers.map(example).batch(4).prefetch(2)

  def split(context: tf.distribute.InputContext) -> tf.data.Dataset:
    return queue.dataset(context).map(example).batch(4).prefetch(2)

  if feed == 'train':
    trainer = tfps.Coordinator(strategy) if name == 'coordinator' else strategy
    trainer.train(
      lambda batch: model.train_step(batch),
      endless,
      steps=40,
      steps_per_execution=2,
      hooks=[lambda progress: end.within(progress.step)],
    )
  else:
    data = split if feed == 'queue' else endless(None)
    steps = None if feed == 'queue' else 40
    ending = keras.callbacks.LambdaCallback(
      on_train_batch_end=lambda batch, logs: end.within(batch)
    )
    model.fit(data, steps_per_epoch=steps, callbacks=[ending], verbose=0)
    begun = iter(endless(None))
    next(begun)
  end()


if __name__ == '__main__':
  main(*sys.argv[1:])
