"""The insides of `tf.distribute.coordinator.ClusterCoordinator` that we mend.

TensorFlow's constructors make the cluster, its workers and its queue and start
their threads, with no place to pass in others. So `take_over` turns the objects
that were made into instances of the classes below.
"""

from collections.abc import Callable
from collections.abc import Sequence
import functools
import threading
import time
from typing import Any

from tensorflow.python.distribute.coordinator import cluster_coordinator
from tensorflow.python.distribute.coordinator import (
  remote_value as remote_value_lib,
)
from tensorflow.python.eager import context

from tfps._compat import cancellation
from tfps._compat import executors
from tfps._compat import per_worker
from tfps._compat import preemption_handler
from tfps._utils import deadlines
from tfps._utils import timeouts


class StillInFlightError(Exception):
  """Executions that were told to stop have not stopped by the deadline."""


class Queue(cluster_coordinator._CoordinatedClosureQueue):
  """A queue whose cleaning up after an error keeps to a deadline.

  TensorFlow's waits without limit for the executions that it has cancelled.
  """

  deadline: float | None = None

  @property
  def failed(self) -> bool:
    return self._error is not None

  @property
  def num_queued(self) -> int:
    return self._queue.qsize()

  def wait_for_room(self) -> bool:
    """Whether another closure can be put; TensorFlow's `put` waits for ever."""
    with self._queue_lock:
      return deadlines.wait_for(
        self._queue_free_slot_condition,
        lambda: not self._queue.full(),
        self.deadline,
      )

  def wait(self, timeout: float | None = None) -> bool:
    deadline = deadlines.after(timeout)
    with self._put_wait_lock, self._queue_lock:
      quiet = deadlines.wait_for(
        self._stop_waiting_condition, self._is_quiet, deadline
      )
      self._raise_if_error()
      return quiet

  def _is_quiet(self) -> bool:
    return self.failed or (
      self._queue.empty() and not self._inflight_closure_count
    )

  def put_back(self, closure: Any) -> None:
    # What it returned, if it did, was out of reach before anybody had it. Who
    # waits for it is to wait for what it returns next.
    closure.maybe_call_with_output_remote_value(_forget_result)
    super().put_back(closure)

  def cancel_queued(self) -> None:
    """Cancels what no worker has begun."""
    with self._queue_lock:
      while not self._queue.empty():
        self._queue.get(block=False).mark_cancelled()
      self._queue_free_slot_condition.notify_all()
      if not self._inflight_closure_count:
        self._stop_waiting_condition.notify_all()

  def _cancel_all_closures(self) -> None:
    # Called with the lock held by `put`, `wait` and `done` once there is an
    # error. What this raises leaves the error in place for their next caller.
    self._cancellation_mgr.start_cancel()
    stopped = deadlines.wait_for(
      self._no_inflight_closure_condition,
      lambda: not self._inflight_closure_count,
      self.deadline,
    )
    if not stopped:
      raise StillInFlightError from self._error
    super()._cancel_all_closures()
    self.cancel_call_by_call()

  def cancel_call_by_call(self) -> None:
    """Has each execution be one call, which belongs to other things, too."""
    self._cancellation_mgr = cancellation.Calls()


class Worker(cluster_coordinator.Worker):
  """A worker that says what it executes and when it is through."""

  _closure: Any = None
  _since = 0.0
  # Replaced by `take_over` with a condition that all workers share.
  finished = threading.Condition()
  # Whether it was not there when resources were made for each worker.
  has_joined = False

  @property
  def busy_since(self) -> float | None:
    """Since when this worker executes something, by `time.monotonic`."""
    since = self._since
    return None if self._closure is None else since

  def begin_datasets_again(self) -> None:
    """Makes anew the iterators that never end."""
    with self._resource_tracking_lock:
      for reference in self._resource_remote_value_refs:
        resource = reference()
        if getattr(resource, '_never_ends', False):
          self._schedule_resource(resource._closure)

  def is_executing(self, remote_value: Any) -> bool:
    """Whether the value's result or error is still being dealt with.

    A closure's value is ready before its result is copied to this process,
    and has its error before the queue has it.
    """
    closure = self._closure
    reference = closure and closure._output_remote_value_ref
    return bool(reference) and reference() is remote_value

  def _process_closure(self, closure: Any) -> None:
    if self.has_joined and self._is_put_off(closure):
      return
    # In this order: who dismisses a worker waits for what it executes.
    self._since, self._closure = time.monotonic(), closure
    try:
      is_dismissed = self._is_dismissed()
      if not is_dismissed:
        with executors.own():
          super()._process_closure(closure)
    finally:
      self._end()
    if is_dismissed:
      self._cluster.closure_queue.put_back(closure)
      self.failure_handler.wait_for_return(
        self.worker_index, self._on_worker_recovery
      )

  def _process_resource_closure(self, closure: Any) -> None:
    with executors.own():
      super()._process_resource_closure(closure)

  def _is_put_off(self, closure: Any) -> bool:
    """Whether a closure has to wait, or has failed, for want of resources."""
    try:
      if not per_worker.make_up(closure, self._cluster.workers):
        return False
    except Exception as error:  # which who has made it gets
      failure = error
      closure.maybe_call_with_output_remote_value(
        lambda result: result._set_error(failure)
      )
      self._cluster.closure_queue.mark_failed(failure)
      self._end()
    else:
      self._cluster.closure_queue.put_back(closure)
    return True

  def _is_dismissed(self) -> bool:
    handler = self.failure_handler
    return isinstance(handler, preemption_handler.PreemptionHandler) and (
      handler.is_dismissed(self.worker_index)
    )

  def _on_closure_failure(self, closure: Any, error: Exception) -> None:
    # The worker is lost and waits for its recovery; another takes the closure.
    super()._on_closure_failure(closure, error)
    self._end()

  def _end(self) -> None:
    self._closure = None
    with self.finished:
      self.finished.notify_all()


def _forget_result(remote_value: Any) -> None:
  remote_value._status_available_event.clear()
  remote_value._status = remote_value_lib.RemoteValueStatus.NOT_READY
  remote_value._values = None
  remote_value._error = None


def take_over(
  cluster: Any,
  make_handler: Callable[[Any, Any], preemption_handler.PreemptionHandler],
) -> None:
  """Gives our classes to the cluster of a stock coordinator.

  Args:
    cluster: the coordinator's `_cluster`.
    make_handler: gets the cluster as the runtime knows it, and `cluster`; makes
      the failure handler, if TensorFlow has one here.
  """
  cluster.closure_queue.__class__ = Queue
  cluster.closure_queue.cancel_call_by_call()
  cluster.resource_cancellation_mgr = cancellation.Calls()
  finished = threading.Condition()
  for worker in cluster.workers:
    worker.__class__ = Worker
    worker.finished = finished
  stock = cluster.failure_handler
  if type(stock) is cluster_coordinator.WorkerPreemptionHandler:
    handler = make_handler(context.get_server_def(), cluster)
    for owner in (cluster, *cluster.workers):
      owner.failure_handler = handler
    _dismiss(stock)


def add_worker(cluster: Any) -> None:
  """Has one more worker, which the runtime knows, execute closures."""
  first, index = cluster.workers[0], len(cluster.workers)
  worker = object.__new__(Worker)
  worker.finished = first.finished
  worker.has_joined = True
  cluster.workers.append(worker)  # for it begins to work where it is made
  device = f'/job:worker/replica:0/task:{index}'
  cluster_coordinator.Worker.__init__(worker, index, device, cluster)


def stop(cluster: Any, deadline: float | None) -> list[str]:
  """Stops a cluster's threads; returns the names of those that still run.

  Args:
    cluster: a cluster that was taken over.
    deadline: until when to wait for the threads, by `time.monotonic`.
  """
  threads = _worker_threads(cluster)
  if isinstance(cluster.failure_handler, preemption_handler.PreemptionHandler):
    threads.append(cluster.failure_handler.thread)
  signal_stop(cluster)
  for thread in threads:
    thread.join(deadlines.seconds_until(deadline))
  left = [thread.name for thread in threads if thread.is_alive()]
  if not left:
    for worker in cluster.workers:
      # An executor that is deleted reports its last error once more.
      worker.executor.clear_error()
  return left


def signal_stop(cluster: Any) -> None:
  """Tells a cluster's threads to end, without waiting for them."""
  for worker in cluster.workers:
    worker.stop()
  cluster.closure_queue.cancel_queued()
  cluster.stop()


def adopt(coordinator_class: type, strategy: Any) -> Any:
  """The strategy's coordinator as an instance of the class, or a new one.

  Entering a strategy's scope makes a stock coordinator, which variables and
  tables then keep. It becomes ours, so that there is never a second one.
  """
  if not hasattr(strategy, '_is_parameter_server_strategy_v2'):
    raise ValueError(
      f'A coordinator needs a ParameterServerStrategy, not {strategy!r}.'
    )
  coordinator = strategy._cluster_coordinator
  if coordinator is None:
    coordinator = object.__new__(coordinator_class)
    strategy._cluster_coordinator = coordinator
  elif not isinstance(coordinator, coordinator_class):
    coordinator.__class__ = coordinator_class
  return coordinator


def forget(strategy: Any) -> None:
  """Lets the strategy have a new coordinator."""
  strategy._cluster_coordinator = None


def being_scheduled(strategy: Any, *, value: bool) -> None:
  """Says whether `strategy.run` is being traced for a worker.

  `ClusterCoordinator.schedule` sets this and leaves it set when it raises; a
  strategy then no longer warns of computation on the chief.
  """
  strategy.extended._being_scheduled = value


def schedule_through(
  cluster: Any, attempt: Callable[..., Any], fn: Any, args: Sequence[Any]
) -> Any:
  """Queues a function that workers call through something else.

  `Cluster.schedule` has no place for it: what is no function of TensorFlow's
  is neither traced there nor cancelled.

  Args:
    cluster: one that was taken over.
    attempt: gets the function and its arguments on a worker, each time that one
      takes it up.
    fn: a `tf.function`, or a concrete one.
    args: as for `schedule`.
  """
  queue = cluster.closure_queue
  closure = cluster_coordinator.Closure(fn, queue._cancellation_mgr, args=args)
  closure._function = functools.partial(attempt, closure._function)
  result = closure.build_output_remote_value()
  queue.put(closure)
  return result


def jobs(strategy: Any) -> dict[str, dict[int, str]]:
  """The addresses of a strategy's tasks.

  `Strategy.cluster_resolver` is None for parameter server strategies.
  """
  spec = strategy._cluster_resolver.cluster_spec()
  return {
    job: {i: spec.task_address(job, i) for i in spec.task_indices(job)}
    for job in ('ps', 'worker')
  }


def busy_since(cluster: Any) -> dict[int, float]:
  """The indices of the workers that execute something now, and since when."""
  found = {worker.worker_index: worker.busy_since for worker in cluster.workers}
  return {index: since for index, since in found.items() if since is not None}


def wait_until_finished(
  cluster: Any, remote_value: Any, deadline: float | None
) -> bool:
  """Waits until a remote value is available and done with."""
  available = remote_value._status_available_event
  return deadlines.wait_until(available.wait, deadline) and bool(
    wait_until_any(cluster, [remote_value], deadline)
  )


def wait_until_any(
  cluster: Any, remote_values: Sequence[Any], deadline: float | None
) -> list[Any]:
  """Those that are finished, once there are any; at the deadline, none."""
  condition = cluster.workers[0].finished
  with condition:
    return deadlines.wait_for(
      condition,
      lambda: [v for v in remote_values if is_finished(cluster, v)],
      deadline,
    )


def is_finished(cluster: Any, remote_value: Any) -> bool:
  """Whether a remote value is available and no worker is at it any more."""
  return remote_value._status_available_event.is_set() and not any(
    worker.is_executing(remote_value) for worker in cluster.workers
  )


def is_local(remote_value: Any) -> bool:
  """Whether fetching the value asks no other task."""
  return remote_value._has_fetched_to_local or remote_value._error is not None


def num_workers(coordinator: Any) -> int:
  """How many workers a `ClusterCoordinator` schedules on."""
  return len(coordinator._cluster.workers)


def num_repairs(coordinator: Any) -> int:
  """How often the lost ps of a coordinator that is ours have been repaired."""
  return int(getattr(coordinator._cluster.failure_handler, 'num_repairs', 0))


def absent_workers(coordinator: Any) -> set[int]:
  """The indices of the workers that do nothing now, as they are not there."""
  handler = coordinator._cluster.failure_handler
  if not isinstance(handler, preemption_handler.PreemptionHandler):
    return set()
  return handler.absent()


def _dismiss(handler: Any) -> None:
  # Not by its own `stop`, which waits for a recovery that is under way.
  handler._should_preemption_thread_run = False
  handler._cluster_due_for_update_or_finish.set()
  handler._preemption_handler_thread.join(timeouts.current().repair_stop_secs)


def _worker_threads(cluster: Any) -> list[threading.Thread]:
  # TensorFlow keeps no reference to them. Their target is a worker's method.
  targets = {
    thread: getattr(thread, '_target', None) for thread in threading.enumerate()
  }
  return [
    thread
    for thread, target in targets.items()
    if getattr(target, '__self__', None) in cluster.workers
  ]
