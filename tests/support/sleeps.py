"""Operations that take their time, and none of a CPU's."""

import tensorflow as tf


def slow(secs, *after):
  """One, as int64, that is there so many seconds after other tensors."""
  spec = tf.TensorSpec([], tf.int64)
  with tf.control_dependencies(after):
    microseconds = tf.constant(round(secs * 1e6), tf.int64)
  ones = tf.data.Dataset.from_tensors(tf.ones([], tf.int64))
  slow_ones = tf.raw_ops.SleepDataset(
    input_dataset=tf.data.experimental.to_variant(ones),
    sleep_microseconds=microseconds,
    output_types=[spec.dtype],
    output_shapes=[spec.shape],
  )
  dataset = tf.data.experimental.from_variant(slow_ones, spec)
  return dataset.take(1).get_single_element()
