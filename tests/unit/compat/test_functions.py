"""What the function that is being traced captures of others."""

import tensorflow as tf

from tfps._compat import functions

_NUMBER = tf.TensorSpec([], tf.float32)


def _traced(function):
  """What a function has captured of others by the end of its trace."""
  found = []

  @tf.function
  def trace(number):
    function(number)
    found.extend(functions.foreign_captures())

  trace.get_concrete_function(_NUMBER)
  return found


def test_a_tensor_of_an_earlier_trace_is_foreign():
  left = []

  def grow(number):
    left.append(number + 1)
    tf.add_n(left)

  assert not _traced(grow)
  (found,) = _traced(grow)
  assert found is left[0]


def test_one_that_a_loop_has_left_is_foreign_to_what_comes_after():
  left = []

  def grow(number):
    def body(i):
      left.append(number * tf.cast(i, tf.float32))
      tf.add_n(left)
      return (i + 1,)

    tf.while_loop(lambda i: i < 3, body, (0,))

  assert not _traced(grow)
  (found,) = _traced(grow)
  assert found is left[0]


def test_those_of_functions_and_loops_around_it_are_not():
  variable, constant = tf.Variable(1.0), tf.constant(2.0)
  found = []

  def use(number):
    doubled = 2 * number

    @tf.function
    def inner(other):
      total = doubled + other + constant + variable
      found.append(functions.foreign_captures())
      return total

    tf.while_loop(lambda i: i < 3, lambda i: i + inner(i), (number,))

  assert not _traced(use)
  assert found == [[]]
  assert not functions.foreign_captures()  # outside of functions
