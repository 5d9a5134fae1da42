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

from tfps._compat import closure_queue
from tfps._compat import coordinator as compat
from tfps._compat import per_worker


def make_queue(num_closures):
  queue = cc._CoordinatedClosureQueue()
  queue.__class__ = closure_queue.Queue
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
  'a closure is made cancellable by what it is given': (
    cc.Closure.__init__,
    'self._function = cancellation_mgr.get_cancelable_function(',
  ),
  'what is scheduled is given that of the queue': (
    cc.Cluster.schedule,
    'self.closure_queue._cancellation_mgr',
  ),
  'what makes resources is given that of the cluster': (
    cc.Worker.create_resource,
    'self._cluster.resource_cancellation_mgr',
  ),
  'what cancels closures waits for those in flight, then drains': (
    cc._CoordinatedClosureQueue._cancel_all_closures,
    'self._no_inflight_closure_condition.wait()',
  ),
  'puts wait for a free slot under this lock': (
    cc._CoordinatedClosureQueue.put,
    'with self._put_wait_lock, self._queue_lock:',
  ),
  'the loop of the handler takes this for its end': (
    cc.WorkerPreemptionHandler.stop,
    'self._should_preemption_thread_run = False',
  ),
  'a lost worker hands its closure to this method': (
    cc.Worker._process_closure,
    'self._on_closure_failure(',
  ),
  'a resource is made again when its worker is back': (
    cc.Worker.create_resource,
    'self._register_and_schedule_resource_closure(',
  ),
}


@pytest.mark.parametrize('name', SOURCES)
def test_the_stock_code_is_what_we_replace(name):
  function, text = SOURCES[name]
  assert text in inspect.getsource(function)


OVERRIDDEN = {
  'Queue.wait': (cc._CoordinatedClosureQueue.wait, ['timeout']),
  'Queue._cancel_all_closures': (
    cc._CoordinatedClosureQueue._cancel_all_closures,
    [],
  ),
  'Worker._process_closure': (cc.Worker._process_closure, ['closure']),
  'Worker._on_closure_failure': (
    cc.Worker._on_closure_failure,
    ['closure', 'e'],
  ),
}


@pytest.mark.parametrize('name', OVERRIDDEN)
def test_a_method_that_we_override_takes_the_same_arguments(name):
  function, arguments = OVERRIDDEN[name]
  assert list(inspect.signature(function).parameters)[1:] == arguments


# What is read or set of each of TensorFlow's objects.
ATTRIBUTES = {
  'strategy': (
    lambda coordinator: coordinator.strategy,
    {
      '_is_parameter_server_strategy_v2',
      '_cluster_coordinator',
      '_cluster_resolver',
    },
  ),
  'extended': (
    lambda coordinator: coordinator.strategy.extended,
    {'_being_scheduled'},
  ),
  'cluster': (
    lambda coordinator: coordinator._cluster,
    {'closure_queue', 'failure_handler', 'stop', 'workers'},
  ),
  'queue': (
    lambda coordinator: coordinator._cluster.closure_queue,
    {
      '_cancel_all_closures',
      '_cancellation_mgr',
      '_error',
      '_inflight_closure_count',
      '_no_inflight_closure_condition',
      '_put_wait_lock',
      '_queue',
      '_queue_free_slot_condition',
      '_queue_lock',
      '_raise_if_error',
      '_stop_waiting_condition',
    },
  ),
  'worker': (
    lambda coordinator: coordinator._cluster.workers[0],
    {
      'create_resource',
      'executor',
      'failure_handler',
      'stop',
      'worker_index',
    },
  ),
  'executor': (
    lambda coordinator: coordinator._cluster.workers[0].executor,
    {'clear_error'},
  ),
  'failure handler': (
    lambda coordinator: coordinator._cluster.failure_handler,
    {
      '_cluster_due_for_update_or_finish',
      '_preemption_handler_thread',
      '_should_preemption_thread_run',
    },
  ),
  'closure': (
    lambda _: make_queue(1).get(),
    {
      '_output_remote_value_ref',
      'mark_cancelled',
      'maybe_call_with_output_remote_value',
      'value',
    },
  ),
  'remote value': (
    lambda coordinator: coordinator.schedule(tf.function(lambda: 1.0)),
    {
      '_error',
      '_has_fetched_to_local',
      '_status',
      '_status_available_event',
      '_values',
    },
  ),
}


@pytest.mark.parametrize('name', ATTRIBUTES)
def test_what_we_use_of_an_object_is_there(coordinator, name):
  get, attributes = ATTRIBUTES[name]
  target = get(coordinator)
  assert {a for a in attributes if not hasattr(target, a)} == set()


def test_a_coordinator_is_kept_by_its_strategy(coordinator):
  assert coordinator.strategy._cluster_coordinator is coordinator


def test_a_remote_value_says_when_it_is_here(coordinator):
  value = coordinator.schedule(tf.function(lambda: 1.0))
  assert value._status_available_event.wait(60)
  assert compat.is_local(value) == value._has_fetched_to_local
  assert value.fetch() == 1.0
  assert compat.is_local(value)


def test_workers_threads_are_found(coordinator):
  assert len(compat._worker_threads(coordinator._cluster)) == 1


def test_own_datasets_begin_again(coordinator):
  dataset_fn = tf.function(lambda: tf.data.Dataset.range(3))
  iterators, spec = per_worker.iterators(
    coordinator, lambda *worker: dataset_fn.get_concrete_function(), iter
  )
  take = tf.function(lambda batches: next(batches), input_signature=[spec])
  [worker] = coordinator._cluster.workers

  def taken():
    return int(coordinator.fetch(coordinator.schedule(take, (iterators,))))

  assert [taken(), taken()] == [0, 1]
  compat.Worker.begin_datasets_again(worker)
  assert [taken(), taken()] == [0, 1]


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
    with pytest.raises(closure_queue.StillInFlightError):
      wait()
  queue.mark_finished()
  with pytest.raises(ValueError, match='a bug'):
    queue.wait()
  assert queue.wait()
  assert queue.done()


def test_what_is_put_back_has_no_result_until_it_is_done_again():
  queue = make_queue(1)
  closure = queue.get()
  closure.value._set_values(tf.constant(1.0))
  assert closure.value._status_available_event.is_set()
  queue.put_back(closure)
  assert not closure.value._status_available_event.is_set()
  queue.get().value._set_values(tf.constant(2.0))
  assert closure.value.fetch() == 2.0


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
