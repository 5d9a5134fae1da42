"""Datasets whose graphs cannot be sent to workers."""

import numpy as np
import pytest
import tensorflow as tf

from tfps._compat import captured_datasets

_numbers = tf.data.Dataset.range


def _counted():
  return tf.data.Dataset.from_generator(
    lambda: iter([1]), output_signature=tf.TensorSpec([], tf.int32)
  )


def _copied():
  return _numbers(3).apply(tf.data.experimental.copy_to_device('/cpu:0'))


@pytest.mark.parametrize(
  ('make', 'complaint'),
  [
    (_counted, 'which executes Python code'),
    (_copied, r'has no graph \(.*GeneratorDatasetOp.* serialization'),
  ],
)
def test_a_dataset_that_cannot_be_sent_is_told(make, complaint):
  dataset = make()
  with (
    captured_datasets.sent(),
    pytest.raises(ValueError, match=f'{complaint}.* make it within the func'),
  ):
    captured_datasets.usable(dataset._variant_tensor)


def test_a_dataset_of_many_values_is_told(monkeypatch):
  monkeypatch.setattr(captured_datasets, '_MAX_BYTES', 3_000_000)
  dataset = tf.data.Dataset.from_tensors(np.zeros(4_000_000, np.uint8))
  with (
    captured_datasets.sent(),
    pytest.raises(ValueError, match=r'has 4 MB of values.* make it within'),
  ):
    captured_datasets.usable(dataset._variant_tensor)
