"""What a function that is being traced captures and calls of others."""

import tensorflow as tf

from tfps._compat import autograph
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


class _Scale:
  factor = 3.0

  @tf.function
  def scaled(self, x):
    return self.factor * x if x > 0 else x


@tf.function
def _doubled(x):
  if x > 0:
    x = 2.0 * x
  return x


@tf.function(autograph=False)
def _is_symbolic(x):
  try:
    return x if x > 0 else -x
  except tf.errors.OperatorNotAllowedInGraphError:
    return 0.0 * x


def _within_another(function):
  @tf.function(autograph=False)
  def run(x):
    with autograph.enabled():
      return tf.distribute.get_strategy().run(function, args=(x,))

  return run(tf.constant(2.0))


def test_what_a_function_traces_may_be_traced_as_part_of_another():
  scale = _Scale()
  wanted = {_doubled: 4.0, scale.scaled: 6.0, _is_symbolic: 0.0, tf.abs: 2.0}
  for function, result in wanted.items():
    own = functions.python_function(function)
    assert not hasattr(own, 'get_concrete_function')

    assert _within_another(own) == result


def test_what_xla_compiles_stays():
  compiled = tf.function(lambda x: x, jit_compile=True)
  assert functions.python_function(compiled) is compiled
