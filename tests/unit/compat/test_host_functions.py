"""Python functions that graphs call by a name that is no number."""

import numpy as np
import pytest
import tensorflow as tf

from tfps._compat import host_functions


def _doubled(numbers):
  return [2 * numbers, np.array([b'two'], object)]


@tf.function
def _call(name, number):
  return host_functions.call(name, [number], [tf.int64, tf.string])


def test_the_name_is_looked_up_when_the_graph_is_executed():
  number = tf.constant([3], tf.int64)
  graph = _call.get_concrete_function('doubled', number)
  host_functions.offer('doubled', _doubled)
  numbers, words = graph(number)
  assert (numbers.numpy(), words.numpy()) == ([6], [b'two'])


def test_what_nobody_offers_is_told():
  with pytest.raises(
    tf.errors.InvalidArgumentError,
    match=r"does not offer 'tfps/unknown'.*Start it with tfps\.serve",
  ):
    _call('unknown', tf.constant([3], tf.int64))


def test_only_named_calls_need_no_function_of_one_process():
  number = tf.constant([3], tf.int64)
  named = _call.get_concrete_function('doubled', number)
  numbered = tf.function(
    lambda number: tf.numpy_function(_doubled, [number], tf.int64)
  ).get_concrete_function(number)
  found = {
    host_functions.is_call(node)
    for graph in (named, numbered)
    for node in graph.graph.as_graph_def().node
    if node.op == 'PyFunc'
  }
  assert found == {True, False}
