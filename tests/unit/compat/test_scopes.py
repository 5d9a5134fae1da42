"""Scopes that were not left are left, as the suite does after each test."""

import pathlib

import pytest
import tensorflow as tf

from tfps._compat import scopes

pytest_plugins = ['pytester']

_CONFTEST = pathlib.Path(__file__).parents[2] / 'conftest.py'


class _InterruptedError(Exception):
  """Of a signal handler, in the midst of leaving a scope."""


# The scope is closed once more when it is garbage.
@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
def test_scopes_are_left_of_which_leaving_was_interrupted(monkeypatch):
  strategy = tf.distribute.OneDeviceStrategy('cpu')

  def interrupt():
    raise _InterruptedError

  class Tracker:
    initialize_all = staticmethod(interrupt)

  scope = strategy.scope()
  scope.__enter__()
  monkeypatch.setattr(
    strategy.extended, '_lazy_variable_tracker', Tracker, raising=False
  )
  with pytest.raises(_InterruptedError):
    scope.__exit__(None, None, None)
  assert tf.distribute.has_strategy()
  assert scopes.leave_all()
  assert not tf.distribute.has_strategy()
  assert not scopes.leave_all()
  with tf.distribute.OneDeviceStrategy('cpu').scope():
    assert not hasattr(tf.Variable(1.0), 'values')


@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
def test_creators_are_left_too():
  seen = []

  def creator(next_creator, **kwargs):
    seen.append(kwargs)
    return next_creator(**kwargs)

  scope = tf.variable_creator_scope(creator)  # it is left with its last user
  scope.__enter__()
  assert scopes.leave_all()
  tf.Variable(1.0)
  assert seen == []


def test_a_table_that_was_made_is_no_scope():
  tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1], [2]), 0)
  assert not scopes.leave_all()


def test_a_test_that_stays_in_a_scope_fails_and_its_successors_do_not(pytester):
  pytester.makeconftest(_CONFTEST.read_text())
  pytester.makepyfile("""
    import tensorflow as tf

    scope = tf.distribute.OneDeviceStrategy('cpu').scope()

    def test_stays():
      scope.__enter__()

    def test_works():
      with tf.distribute.MirroredStrategy(['cpu:0']).scope():
        tf.Variable(1.0)
  """)
  result = pytester.runpytest_inprocess('-p', 'no:cacheprovider')
  result.assert_outcomes(passed=2, errors=1)
  result.stdout.fnmatch_lines(["*has not left a strategy's scope*"])
