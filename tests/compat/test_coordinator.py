"""Canaries for what `tfps._compat.coordinator` relies upon."""

import inspect
import threading
import time

import pytest
import tensorflow as tf
from tensorflow.python.distribute.coordinator import cluster_coordinator as cc
from tensorflow.python.distribute.coordinator import values
from tensorflow.python.distribute.parameter_server_strategy_v2 import (
  ParameterServerStrategyV2,
)

from tfps._compat import coordinator as compat


def make_queue(num_closures):
  queue = cc._CoordinatedClosureQueue()
  queue.__class__ = compat.Queue
  for _ in range(num_closures):
    closure = cc.Closure(tf.function(lambda: 1.0), queue._cancellation_mgr)
    closure.value = closure.build_output_remote_value()
    queue.put(closure)
  return queue


SOURCES = {
  'the worker asks for its handler each time': (
    cc.Worker._process_closure,
    'with self.failure_handler.wait_on_failure(',
  ),
  'the worker loop finds _process_closure on the object': (
    cc.Worker._process_queue,
    'self._process_closure(closure)',
  ),
  'the loop of the handler starts by its name': (
    cc.WorkerPreemptionHandler.__init__,
    'target=self._preemption_handler',
  ),
  'workers wait for their recovery on this condition': (
    cc.WorkerPreemptionHandler.wait_on_failure,
    'self._worker_up_cond.wait(',
  ),
  'the queue is drained in one place': (
    cc._CoordinatedClosureQueue._raise_if_error,
    'self._cancel_all_closures()',
  ),
  'a strategy keeps one coordinator': (
    cc.ClusterCoordinator.__new__,
    'strategy._cluster_coordinator',
  ),
  'the strategy keeps its resolver': (
    ParameterServerStrategyV2.__init__,
    'self._cluster_resolver = cluster_resolver',
  ),
  'a closure leaves this set when it raises': (
    cc.ClusterCoordinator.schedule,
    'extended._being_scheduled = True',
  ),
  'values have an event': (
    values.RemoteValueImpl.__init__,
    'self._status_available_event = threading.Event()',
  ),
}


@pytest.mark.parametrize('name', SOURCES)
def test_the_stock_code_is_what_we_replace(name):
  function, text = SOURCES[name]
  assert text in inspect.getsource(function)


def test_a_thread_knows_its_target():
  opened = threading.Event()
  thread = threading.Thread(target=opened.wait)
  thread.start()
  assert thread._target.__self__ is opened
  opened.set()
  thread.join()


def test_the_queue_gives_up_draining_at_its_deadline_and_keeps_the_error():
  queue = make_queue(3)
  queue.get()
  queue.get()
  queue.mark_failed(ValueError('a bug'))
  queue.deadline = time.monotonic() + 0.1
  for wait in (queue.done, queue.wait):
    with pytest.raises(compat.StillInFlightError):
      wait()
  queue.mark_finished()
  with pytest.raises(ValueError, match='a bug'):
    queue.wait()
  assert queue.wait()
  assert queue.done()


def test_the_queue_says_when_its_wait_ends_early():
  queue = make_queue(1)
  assert not queue.wait(0.1)
  queue.get()
  assert not queue.wait(0.1)
  queue.mark_finished()
  assert queue.wait(0.1)


def test_a_full_queue_has_no_room_until_one_is_taken(monkeypatch):
  monkeypatch.setattr(cc, '_CLOSURE_QUEUE_MAX_SIZE', 2)
  queue = make_queue(2)
  queue.deadline = time.monotonic() + 0.1
  assert not queue.wait_for_room()
  queue.get()
  assert queue.wait_for_room()


def test_what_is_queued_is_cancelled_and_what_is_executed_stays():
  queue = make_queue(3)
  executed = queue.get()
  queue.cancel_queued()
  assert queue._queue.empty()
  assert not queue.wait(0.1)
  queue.mark_finished()
  assert queue.wait(0.1)
  assert executed.value._error is None
