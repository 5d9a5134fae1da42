"""Jobs under the lock of a device."""

import time

import pytest
import tensorflow as tf

from tfps._compat import writes
from tfps._utils import threads
from tfps.updates import ps_lock

_INT = tf.TensorSpec([], tf.int32)


def _late(value):
  time.sleep(0.2)
  return value


def test_a_step_may_take_its_second_lock_first():
  first, second, count = (tf.Variable(0.0) for _ in range(3))

  @tf.function(autograph=False)
  def step(value):
    begun = writes.num_operations()
    late = tf.numpy_function(_late, [value], tf.float32, stateful=False)
    for variable, each in (first, late), (second, value):
      ps_lock.run([ps_lock.Job(variable, _adding_to(variable), [each])])
    count.assign_add(1.0)
    writes.put_last(begun)

  done = threads.begin('step', lambda: step(tf.constant(1.0)))
  assert threads.is_done(done, 30)
  done.result()
  assert [float(v) for v in (first, second, count)] == [1, 1, 1]


def test_a_lock_is_taken_once_there_is_a_batch():
  variable = tf.Variable(0.0)

  @tf.function(autograph=False)
  def step(iterator):
    begun = writes.num_operations()
    next(iterator)
    job = ps_lock.Job(variable, _adding_to(variable), [tf.constant(1.0)])
    ps_lock.run([job])
    writes.put_last(begun)

  data = tf.data.Dataset.from_generator(_two, output_signature=_INT)
  iterator = iter(data)
  step(iterator)
  step(iterator)
  with pytest.raises(tf.errors.OutOfRangeError):
    step(iterator)
  assert float(variable) == 2


def _two():
  """Two numbers, and an end that comes late."""
  yield from range(2)
  time.sleep(0.2)


def _adding_to(variable):
  return lambda value: [variable.assign_add(value, read_value=False)]
