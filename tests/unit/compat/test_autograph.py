"""AutoGraph converts functions of users, and none of the package."""

import types

import pytest
import tensorflow as tf

from tfps._compat import autograph


@pytest.fixture(autouse=True)
def exempt():
  autograph.take_part()


def _function(module, **names):
  """Halves of a function's argument, if that is positive, of a module."""
  source = """
def half(x):
  if x > 0:
    x = x / 2
  return x
"""
  made = types.ModuleType(module)
  made.__dict__.update(names)
  exec(source, made.__dict__)
  return made.half


def half(x):
  if x > 0:
    x = x / 2
  return x


def test_a_function_of_the_package_is_left_as_it_is():
  own = _function('tfps.some.module')
  with pytest.raises(tf.errors.OperatorNotAllowedInGraphError):
    tf.function(lambda x: own(x) + 0)(tf.constant(4.0))


def test_a_users_function_is_converted_that_the_package_calls():
  def traced(x):
    return autograph.convert(half)(x)

  function = tf.function(traced, autograph=False)
  assert [float(function(tf.constant(x))) for x in (4.0, -4.0)] == [2.0, -4.0]


def test_so_is_what_that_calls():
  @tf.function(autograph=False)
  def traced(x):
    return autograph.convert(lambda x: half(x) + 1)(x)

  assert float(traced(tf.constant(4.0))) == 3.0


def test_an_error_names_the_line_of_the_user():
  def fail(x):
    raise ValueError(f'not with {x.shape}')

  @tf.function(autograph=False)
  def traced(x):
    return autograph.convert(fail)(x)

  with pytest.raises(ValueError, match=r'test_autograph\.py.*[\s\S]*not with'):
    traced(tf.constant(4.0))
