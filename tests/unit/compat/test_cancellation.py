"""What somebody calls is not cancelled with what others do."""

import contextlib
import threading

import pytest
import tensorflow as tf
from tensorflow.python.eager import cancellation as tf_cancellation

from tfps._compat import cancellation
from tfps._utils import threads


def test_each_thread_has_its_own_manager():
  cancellation.keep_apart()
  manager, seen = tf_cancellation.CancellationManager(), []
  with tf_cancellation.CancellationManagerContext(manager):
    other = threading.Thread(
      target=lambda: seen.append(tf_cancellation.context())
    )
    other.start()
    other.join()
    assert tf_cancellation.context() is manager
  assert seen == [None]
  assert tf_cancellation.context() is None


def test_what_is_called_within_a_call_may_have_another_manager():
  cancellation.keep_apart()
  outer, inner = (tf_cancellation.CancellationManager() for _ in range(2))
  with tf_cancellation.CancellationManagerContext(outer):
    with tf_cancellation.CancellationManagerContext(inner):
      assert tf_cancellation.context() is inner
    assert tf_cancellation.context() is outer


class Waiting:
  """A call that waits for a number in a queue, in a thread."""

  def __init__(self, *calls):
    self._queue = tf.queue.FIFOQueue(1, tf.int32)
    self._function = tf.function(self._queue.dequeue).get_concrete_function()
    self._is_within = threading.Event()
    self.future = threads.begin('waiting', lambda: self._call(calls))
    assert self._is_within.wait(30)

  def _call(self, calls):
    with contextlib.ExitStack() as stack:
      for each in calls:
        stack.enter_context(each.one())
      self._is_within.set()
      return int(self._function())

  def go_on(self):
    self._queue.enqueue(7)
    return self.future.result(30)


def test_only_calls_under_way_are_cancelled():
  calls, others = cancellation.Calls(), cancellation.Calls()
  cancelled, other = Waiting(calls), Waiting(others)
  calls.cancel_those_under_way()
  with pytest.raises(tf.errors.CancelledError):
    cancelled.future.result(30)
  assert Waiting(calls).go_on() == 7
  assert other.go_on() == 7


def test_calls_to_come_may_be_cancelled_too():
  calls = cancellation.Calls()
  first = Waiting(calls)
  calls.start_cancel()
  for each in (first, Waiting(calls)):
    with pytest.raises(tf.errors.CancelledError):
      each.future.result(30)


@pytest.mark.parametrize('which', [0, 1])
def test_a_call_that_is_part_of_another_is_cancelled_with_either(which):
  both = cancellation.Calls(), cancellation.Calls()
  call = Waiting(*both)
  both[which].cancel_those_under_way()
  with pytest.raises(tf.errors.CancelledError):
    call.future.result(30)


def test_a_function_s_calls_are_calls():
  calls = cancellation.Calls()
  seen = []
  function = calls.get_cancelable_function(
    lambda: seen.append(tf_cancellation.context())
  )
  function()
  function()
  assert len({id(manager) for manager in seen}) == 2
  assert None not in seen
