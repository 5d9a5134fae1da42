"""What is done beside everything else is not waited for."""

import threading
import time

import pytest
import tensorflow as tf

import tfps
from tfps import errors
from tfps._compat import executors
from tfps._compat import side_executor

_LONG_SECS, _AT_ONCE_SECS = 30.0, 10.0
_WORKER = '/job:worker/replica:0/task:0/device:CPU:0'


class Waiting:
  """A function on a worker, which is in this process, that does not end."""

  def __init__(self):
    self.is_waiting, self.may_end = threading.Event(), threading.Event()
    self.result = []
    self.fn = tf.function(self._call).get_concrete_function()
    self.thread = threading.Thread(target=self._run, daemon=True)
    self.thread.start()
    assert self.is_waiting.wait(_LONG_SECS)

  def _call(self):
    tf.numpy_function(self._wait, [], [])

  def _wait(self):
    self.is_waiting.set()
    self.may_end.wait(_LONG_SECS)

  def _run(self):
    try:
      with side_executor.run_aside(_WORKER):
        self.fn()
    except tf.errors.OpError as error:
      self.result.append(error)
    else:
      self.result.append('done')

  def end(self):
    self.may_end.set()
    self.thread.join(_LONG_SECS)


@pytest.fixture
def connected(tfps_cluster):
  return tfps.ParameterServerStrategy(tfps_cluster.cluster)


@pytest.fixture
def waiting(connected):
  waiting = Waiting()
  yield waiting
  waiting.end()


pytestmark = pytest.mark.tfps_cluster(workers=1, ps=1)


def test_it_is_done_at_its_end(waiting):
  assert not waiting.result
  waiting.end()
  assert waiting.result == ['done']


def test_it_is_cancelled_for_who_needs_to_be_without(waiting):
  began = time.monotonic()
  with side_executor.drained():
    assert time.monotonic() - began < _AT_ONCE_SECS
    waiting.thread.join(_AT_ONCE_SECS)
    assert isinstance(waiting.result[0], tf.errors.CancelledError)


def test_who_connects_waits_for_it(waiting):
  timer = threading.Timer(0.5, waiting.may_end.set)
  timer.start()
  with side_executor.drained_to_connect():
    assert waiting.may_end.is_set()
    waiting.thread.join(_LONG_SECS)
    assert waiting.result == ['done']


def test_nobody_begins_meanwhile(connected):
  begun = threading.Event()

  def begin():
    with side_executor.run_aside(_WORKER):
      begun.set()

  with side_executor.drained():
    beginning = threading.Thread(target=begin, daemon=True)
    beginning.start()
    assert not begun.wait(0.2)
  assert begun.wait(_LONG_SECS)
  beginning.join(_LONG_SECS)


def test_what_cannot_be_cancelled_is_named(set_timeouts):
  set_timeouts(cancel_secs=0.1)
  with (
    side_executor.run_aside('/CPU:0'),
    pytest.raises(errors.DeadlineError, match='/CPU:0'),
    side_executor.drained(),
  ):
    pass


def test_others_are_not_cancelled(waiting):
  function = tf.function(lambda: tf.constant(1))
  with side_executor.drained(), executors.own(), tf.device(_WORKER):
    assert function().numpy() == 1
