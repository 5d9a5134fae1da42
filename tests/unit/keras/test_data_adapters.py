"""Batches for Keras' trainer, of which the first may fail after a loss."""

import tensorflow as tf

from tfps.keras import data_adapters


class _FailsAtFirst:
  """An iterator whose first call reports what another call has run into."""

  def __init__(self, batches):
    self._batches = iter(batches)
    self._has_failed = False

  def __next__(self):
    if not self._has_failed:
      self._has_failed = True
      raise tf.errors.AbortedError(None, None, 'Unable to find a context_id')
    return next(self._batches)


def _again(call):
  try:
    return call()
  except tf.errors.AbortedError:
    return call()


def test_the_batch_that_builds_a_model_survives_a_loss():
  dataset = tf.data.Dataset.range(3)
  batches = _FailsAtFirst(range(3))
  taking = data_adapters.Taking(batches, dataset, surviving=_again)
  assert next(taking) == 0
  assert list(taking.rewound()) == [0, 1, 2]


def test_a_batch_that_is_put_back_comes_again():
  batches = data_adapters.Batches(tf.data.Dataset.range(3), _again)
  assert next(iter(batches)).numpy() == 0
  batches.put_back()
  assert [batch.numpy() for batch in batches] == [0, 1, 2]
  assert [batch.numpy() for batch in batches] == [0, 1, 2]
