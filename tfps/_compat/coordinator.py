"""Changes to the internals of `tf.distribute.coordinator.ClusterCoordinator`.

TensorFlow's constructors make the cluster, its workers and its queue and start
their threads, with no place to pass in others. So `take_over` turns the objects
that were made into instances of our classes.
"""

from collections.abc import Callable
from collections.abc import Sequence
import functools
import threading
import time
from typing import Any

from tensorflow.python.distribute.coordinator import cluster_coordinator
from tensorflow.python.eager import context

from tfps._compat import cancellation
from tfps._compat import closure_queue
from tfps._compat import executors
from tfps._compat import per_worker
from tfps._compat import preemption_handler
from tfps._utils import deadlines
from tfps._utils import timeouts

_WORKER = '_tfps_worker'


class Worker(cluster_coordinator.Worker):
  """Worker that tells what it executes and notifies when it has finished."""

  _closure: Any = None
  _since = 0.0
  # Replaced by `take_over` with a condition that all workers share.
  finished = threading.Condition()
  # Whether it came after resources were made for each worker.
  has_joined = False

  @property
  def busy_since(self) -> float | None:
    """Start of the current execution, by `time.monotonic`; None if idle."""
    since = self._since
    return None if self._closure is None else since

  def begin_datasets_again(self) -> None:
    """Recreates the iterators of endless datasets."""
    with self._resource_tracking_lock:
      for reference in self._resource_remote_value_refs:
        resource = reference()
        if getattr(resource, '_never_ends', False):
          self._schedule_resource(resource._closure)

  def is_executing(self, remote_value: Any) -> bool:
    """Returns whether the closure of a value has not finished entirely.

    A closure's value is ready before its result is copied to this process,
    and has its error before the queue has it.
    """
    closure = self._closure
    reference = closure and closure._output_remote_value_ref
    return bool(reference) and reference() is remote_value

  def _process_closure(self, closure: Any) -> None:
    if self.has_joined and self._is_put_off(closure):
      return
    # In this order: a thread that dismisses a worker waits for its execution.
    self._since, self._closure = time.monotonic(), closure
    try:
      is_dismissed = self._is_dismissed()
      if not is_dismissed:
        with executors.own():
          super()._process_closure(closure)
        _note_worker(closure, self.worker_index)
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
    """Returns whether a closure waits for resources, or failed to get them."""
    try:
      if not per_worker.add_missing(closure, self._cluster.workers):
        return False
    except Exception as error:  # raised where the closure was scheduled
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


def take_over(
  cluster: Any,
  make_handler: Callable[[Any, Any], preemption_handler.PreemptionHandler],
) -> None:
  """Turns the cluster of a stock coordinator into instances of our classes.

  Args:
    cluster: the coordinator's `_cluster`.
    make_handler: gets the cluster as the runtime knows it, and `cluster`;
      returns the failure handler, if TensorFlow has one here.
  """
  cluster.closure_queue.__class__ = closure_queue.Queue
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
  """Adds a worker, which the runtime knows already, to execute closures."""
  first, index = cluster.workers[0], len(cluster.workers)
  worker = object.__new__(Worker)
  worker.finished = first.finished
  worker.has_joined = True
  cluster.workers.append(worker)  # first: its constructor starts its thread
  device = f'/job:worker/replica:0/task:{index}'
  cluster_coordinator.Worker.__init__(worker, index, device, cluster)


def stop(cluster: Any, deadline: float | None) -> list[str]:
  """Stops a cluster's threads; returns the names of those that still run.

  Args:
    cluster: a cluster that was taken over.
    deadline: of the wait for the threads, by `time.monotonic`.
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
  """Returns the strategy's coordinator as an instance of a class.

  Entering a strategy's scope makes a stock coordinator, which variables and
  tables then keep. It becomes ours, so that there is never a second one.

  Args:
    coordinator_class: a subclass of `ClusterCoordinator`.
    strategy: gets a coordinator, not initialized, if it has none.

  Raises:
    ValueError: the strategy is no `ParameterServerStrategy`.
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
  """Removes a strategy's coordinator, so that it can get a new one."""
  strategy._cluster_coordinator = None


def being_scheduled(strategy: Any, *, value: bool) -> None:
  """Sets whether `strategy.run` is being traced for a worker.

  `ClusterCoordinator.schedule` sets this and leaves it set when it raises; a
  strategy then no longer warns of computation on the chief.
  """
  strategy.extended._being_scheduled = value


def schedule_through(
  cluster: Any, attempt: Callable[..., Any], fn: Any, args: Sequence[Any]
) -> Any:
  """Schedules a function that workers call through a wrapper.

  `Cluster.schedule` takes no wrapper: a plain Python function is neither traced
  there nor cancelled.

  Args:
    cluster: a cluster that was taken over.
    attempt: gets the function and its arguments on a worker, each time that one
      takes it up.
    fn: a `tf.function`, or a concrete one.
    args: as for `schedule`.

  Returns:
    The remote value.
  """
  queue = cluster.closure_queue
  closure = cluster_coordinator.Closure(fn, queue._cancellation_mgr, args=args)
  closure._function = functools.partial(attempt, closure._function)
  result = closure.build_output_remote_value()
  queue.put(closure)
  return result


def jobs(strategy: Any) -> dict[str, dict[int, str]]:
  """Returns the addresses of a strategy's tasks, by job and index.

  `Strategy.cluster_resolver` is None for parameter server strategies.
  """
  spec = strategy._cluster_resolver.cluster_spec()
  return {
    job: {i: spec.task_address(job, i) for i in spec.task_indices(job)}
    for job in ('ps', 'worker')
  }


def busy_since(cluster: Any) -> dict[int, float]:
  """Returns by index, for workers that execute something, since when."""
  found = {worker.worker_index: worker.busy_since for worker in cluster.workers}
  return {index: since for index, since in found.items() if since is not None}


def wait_until_finished(
  cluster: Any, remote_value: Any, deadline: float | None
) -> bool:
  """Waits until a remote value is finished; returns whether it is."""
  available = remote_value._status_available_event
  return deadlines.wait_until(available.wait, deadline) and bool(
    wait_until_any(cluster, [remote_value], deadline)
  )


def wait_until_any(
  cluster: Any, remote_values: Sequence[Any], deadline: float | None
) -> list[Any]:
  """Waits until any remote value is finished; returns those that are.

  At the deadline, the result may be empty.
  """
  condition = cluster.workers[0].finished
  with condition:
    return deadlines.wait_for(
      condition,
      lambda: [v for v in remote_values if is_finished(cluster, v)],
      deadline,
    )


def is_finished(cluster: Any, remote_value: Any) -> bool:
  """Returns whether a value is available and no worker still executes it."""
  return remote_value._status_available_event.is_set() and not any(
    worker.is_executing(remote_value) for worker in cluster.workers
  )


def worker_of(remote_value: Any) -> int | None:
  """Returns the index of the worker that has executed a value, if one has."""
  index: int | None = getattr(remote_value, _WORKER, None)
  return index


def is_local(remote_value: Any) -> bool:
  """Returns whether fetching the value needs no other task."""
  return remote_value._has_fetched_to_local or remote_value._error is not None


def num_workers(coordinator: Any) -> int:
  """Returns the number of workers that a `ClusterCoordinator` schedules on."""
  return len(coordinator._cluster.workers)


def num_repairs(coordinator: Any) -> int:
  """Returns how often a coordinator of ours has repaired lost ps."""
  return int(getattr(coordinator._cluster.failure_handler, 'num_repairs', 0))


def absent_workers(coordinator: Any) -> set[int]:
  """Returns the indices of the workers that are lost at the moment."""
  handler = coordinator._cluster.failure_handler
  if not isinstance(handler, preemption_handler.PreemptionHandler):
    return set()
  return handler.absent()


def _note_worker(closure: Any, index: int) -> None:
  # TensorFlow's remote values do not know which worker has executed them.
  reference = closure._output_remote_value_ref
  remote_value = reference and reference()
  if remote_value is not None:
    setattr(remote_value, _WORKER, index)


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
