"""Visits numbers between graphs, slowly, and says how often it was at each.

Usage: visit.py TOTAL VISITATION STEP_SECS DIRECTORY HOW [UPDATES]

Without a DIRECTORY, which is '-', it does not survive the loss of a ps. HOW is
'train' or 'fit', Keras' one; UPDATES is 'Async', 'Sync' or 'BoundedStaleness'.
"""

from collections.abc import Callable
import sys

import keras
import tensorflow as tf

from tests.support import sleeps
import tfps

_PER_EXECUTION = 2
_UPDATES = {
  'Async': tfps.updates.Async(),
  'Sync': tfps.updates.Sync(timeout_secs=2),
  'BoundedStaleness': tfps.updates.BoundedStaleness(1, timeout_secs=2),
}


def main(
  total: int,
  visitation: str,
  step_secs: float,
  directory: str,
  how: str,
  updates: str,
) -> None:
  recovery = None
  if directory != '-':
    recovery = tfps.Recovery(directory, every_secs=0.5)
  strategy = tfps.BetweenGraphStrategy(
    tfps.resolve_cluster(), updates=_UPDATES[updates], recovery=recovery
  )
  with strategy.scope():
    visits = tf.Variable(tf.zeros([total], tf.int64), trainable=False)
    queue = tfps.input.SplitQueue(
      tfps.input.Ranges(total, 50), visitation=visitation
    )
    number = tf.Variable(0.0)
    optimizer = keras.optimizers.SGD(1.0)
    optimizer.build([number])

  def step(numbers: tf.Tensor) -> None:
    ones = tf.ones_like(numbers) * sleeps.slow(step_secs)
    visits.scatter_add(tf.IndexedSlices(ones, numbers))
    optimizer.apply([tf.constant(1.0)], [number])

  def dataset(context: tf.distribute.InputContext) -> tf.data.Dataset:
    return queue.dataset(context).batch(5)

  if how == 'train':
    result = strategy.train(
      step,
      dataset,
      steps_per_execution=_PER_EXECUTION,
      hooks=[lambda progress: print('at', progress.step, flush=True)],
    )
    print('batches', result.step, flush=True)
  else:
    with strategy.scope():
      model = _Model(step)
      model.compile(steps_per_execution=_PER_EXECUTION)
    at = keras.callbacks.LambdaCallback(
      on_train_batch_end=lambda batch, logs: print('at', batch, flush=True)
    )
    model.fit(dataset, callbacks=[at], verbose=0)
  counts = visits.numpy()
  print('visits', counts.min(), counts.max(), counts.sum(), flush=True)
  print('updates', -int(number.numpy()), flush=True)
  print(queue.report(), flush=True)


class _Model(keras.Model):
  def __init__(self, step: Callable[[tf.Tensor], None]) -> None:
    super().__init__()
    self._step = step
    self.built = True

  def train_step(self, data: tf.Tensor) -> dict[str, tf.Tensor]:
    self._step(data)
    return {}


_total, _visitation, _step_secs, _directory, _how, *_more = sys.argv[1:]
_updates = _more[0] if _more else 'Async'
main(int(_total), _visitation, float(_step_secs), _directory, _how, _updates)
