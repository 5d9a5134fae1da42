"""Base class of a failure handler that replaces TensorFlow's.

TensorFlow's coordinator calls its failure handler around everything that a
worker executes, and when it stops. The handler's constructor starts a thread
that runs a method by its name. Subclasses of `PreemptionHandler` use only the
public names of this module.
"""

from collections.abc import Callable
import threading
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.coordinator import cluster_coordinator

from tfps._utils import timeouts

# The errors for which TensorFlow calls its handler.
FAILURES = (
  tf.errors.OpError,
  cluster_coordinator.ClosureInputError,
  cluster_coordinator.ClosureAbortedError,
  TypeError,
)


class PreemptionHandler(cluster_coordinator.WorkerPreemptionHandler):
  """Failure handler of a coordinator, with abstract reactions.

  Args:
    server_def: the cluster as the runtime knows it.
    cluster: the coordinator's cluster.

  Attributes:
    condition: guards state shared by the threads of workers and of the handler,
      and is notified when it changes.
    due: set while the thread of the handler has work.
  """

  def __init__(self, server_def: Any, cluster: Any) -> None:
    # Starts the thread: attributes that `run` needs must exist already.
    super().__init__(server_def, cluster)

  @property
  def condition(self) -> threading.Condition:
    condition: threading.Condition = self._worker_up_cond
    return condition

  @property
  def due(self) -> threading.Event:
    event: threading.Event = self._cluster_due_for_update_or_finish
    return event

  @property
  def thread(self) -> threading.Thread:
    """The thread of the handler, which calls `run`."""
    thread: threading.Thread = self._preemption_handler_thread
    return thread

  def run(self) -> None:
    """Runs in the thread of the handler until `stop` is called."""
    raise NotImplementedError

  def absent(self) -> set[int]:
    """Returns the indices of the workers that are lost at the moment."""
    raise NotImplementedError

  def is_dismissed(self, worker: int) -> bool:
    """Returns whether a worker was told to end, and has not restarted."""
    raise NotImplementedError

  def wait_for_return(self, worker: int, recover: Callable[[], object]) -> None:
    """Waits until a worker that was told to end has restarted; recovers it."""
    raise NotImplementedError

  def stop(self) -> None:
    """Tells the thread of the handler to end, without waiting for it."""
    self._should_preemption_thread_run = False
    self.due.set()
    secs = timeouts.current().repair_stop_secs
    if self._cluster_update_lock.acquire(timeout=secs):
      self.condition.notify_all()
      self._cluster_update_lock.release()

  def check_is_lost_worker(self, failure: Exception) -> None:
    """Raises a failure unless it is the loss of a worker."""
    self._validate_preemption_failure(failure)

  def is_transient_loss_of_ps(self, failure: Exception) -> bool:
    """Counts a loss of a ps; returns whether TensorFlow would retry it."""
    return bool(self._cluster._record_and_ignore_transient_ps_failure(failure))

  def is_transient_timeout(self, failure: Exception) -> bool:
    """Counts a timeout; returns whether TensorFlow would retry it."""
    return bool(self._cluster._record_and_ignore_transient_timeouts(failure))

  def _preemption_handler(self) -> None:
    self.run()


def is_loss_of_worker(failure: Exception) -> bool:
  """Returns whether TensorFlow takes an error for the loss of a worker."""
  return bool(cluster_coordinator._is_worker_failure(failure))


def is_loss_of_ps(failure: Exception) -> bool:
  """Returns whether TensorFlow takes an error for the loss of a ps."""
  return bool(cluster_coordinator._is_ps_failure(failure))
