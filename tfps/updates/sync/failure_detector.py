"""Removes dead or frozen workers from synchronized updates.

A thread checks while something is executed. When workers have waited at the
same version for two checks in a row, it probes all workers. One that gives no
answer for `timeout_secs` is excluded; one that was restarted gives up the
update that it led.
"""

from collections.abc import Callable
from collections.abc import Mapping
import threading

from absl import logging
import tensorflow as tf

from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib
from tfps.server import connection
from tfps.server import health
from tfps.server import task_registry
from tfps.updates.sync import session as session_lib


class FailureDetector:
  """Excludes workers that are silent while others wait.

  Args:
    sync_session: session whose workers are observed.
    workers: returns the addresses of all workers that are known now.
    index_of: returns a worker's number in the session.
    timeout_secs: seconds for which a worker may be silent.
  """

  def __init__(
    self,
    sync_session: session_lib.SyncSession,
    workers: Callable[[], Mapping[spec_lib.Task, str]],
    index_of: Callable[[spec_lib.Task], int],
    *,
    timeout_secs: float,
  ) -> None:
    self._sync_session = sync_session
    self._workers = workers
    self._index_of = index_of
    self._timeout_secs = timeout_secs
    self._versions: list[int] = []
    self._registry: task_registry.TaskRegistry[spec_lib.Task]
    self._registry = task_registry.TaskRegistry()
    self._excluded: set[spec_lib.Task] = set()
    self._lock = threading.Lock()
    self._stopping = threading.Event()
    self._thread: threading.Thread | None = None
    sync_session.executions.call_on_begin(self.begin)
    connection.stop_before_next(self.stop)

  def begin(self) -> None:
    """Starts the thread, which ends when nothing is executed any more."""
    with self._lock:
      if self._thread is None:
        self._thread = threading.Thread(
          target=self._run, name='tfps-failure-detector', daemon=True
        )
        self._thread.start()

  def stop(self) -> None:
    """Stops the thread; idempotent."""
    self._stopping.set()
    with self._lock:
      thread = self._thread
    if thread is not None:
      thread.join(timeouts.current().thread_stop_secs)

  def _run(self) -> None:
    while self._is_needed() and not self._stopping.wait(
      timeouts.current().straggler_secs
    ):
      self._look_or_log()

  def _is_needed(self) -> bool:
    with self._lock:
      is_needed = self._sync_session.executions.are_running
      if not is_needed:
        self._thread = None
      return is_needed

  def _look_or_log(self) -> None:
    try:
      self._look()
    except tf.errors.OpError as error:  # a ps is lost, which recovery handles
      logging.warning('Could not read which workers wait: %s', error)

  def _look(self) -> None:
    if not self._sync_session.executions.are_running:
      self._versions = []
      return
    before, self._versions = (
      self._versions,
      self._sync_session.state.versions_awaited(),
    )
    if not set(before) & set(self._versions):
      self._registry.forget_silence()
      return
    self._sync_session.executions.dismiss_idle()
    found = health.incarnations(self._workers())
    restarted = self._registry.look(found)
    for worker in self._registry.silent(self._timeout_secs):
      self._exclude(worker)
    for worker in self._excluded - self._registry.silent():
      self._excluded.discard(worker)
      logging.warning('%s answers again and is included in updates.', worker)
    for worker in restarted:  # it does not make the update that it led
      self._sync_session.members.replace_leader(self._index_of(worker))
      self._registry.accept({worker: found[worker]})

  def _exclude(self, worker: spec_lib.Task) -> None:
    if worker not in self._excluded:
      logging.warning(
        '%s has not answered for %g seconds while others wait for its '
        'gradients. It is excluded from updates until it answers.',
        worker,
        self._timeout_secs,
      )
    # Repeated: an operation that it had begun on the ps may include it again.
    self._sync_session.members.leave_out(self._index_of(worker))
    self._excluded.add(worker)
