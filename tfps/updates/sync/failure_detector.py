"""Has nobody wait for ever for a worker that is dead or frozen."""

from collections.abc import Callable
from collections.abc import Mapping
import threading
import time

from absl import logging
import tensorflow as tf

from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib
from tfps.server import connection
from tfps.server import health
from tfps.updates.sync import session as session_lib


class FailureDetector:
  """Looks for workers that are silent while others wait.

  Args:
    sync_session: where they wait.
    workers: with their addresses, as they are known at a time.
    index_of: a worker's number in the meetings.
    timeout_secs: how long a worker may be silent.
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
    self._known: dict[spec_lib.Task, int] = {}  # incarnations
    self._silent: dict[spec_lib.Task, float] = {}  # since when
    self._left_out: set[spec_lib.Task] = set()
    self._lock = threading.Lock()
    self._stopping = threading.Event()
    self._thread: threading.Thread | None = None
    sync_session.call_at_work(self.begin)
    connection.stop_before_next(self.stop)

  def begin(self) -> None:
    """Looks while something is executed, in a thread that ends with it."""
    with self._lock:
      if self._thread is None:
        self._thread = threading.Thread(
          target=self._run, name='tfps-absences', daemon=True
        )
        self._thread.start()

  def stop(self) -> None:
    """Looks no more, whatever is being executed; twice is harmless."""
    self._stopping.set()
    with self._lock:
      thread = self._thread
    if thread is not None:
      thread.join(timeouts.current().thread_stop_secs)

  def _run(self) -> None:
    while self._goes_on() and not self._stopping.wait(
      timeouts.current().straggler_secs
    ):
      self._look_or_say()

  def _goes_on(self) -> bool:
    with self._lock:
      goes_on = self._sync_session.are_executing
      if not goes_on:
        self._thread = None
      return goes_on

  def _look_or_say(self) -> None:
    try:
      self._look()
    except tf.errors.OpError as error:  # a ps is lost, which others see to
      logging.warning('Nobody knows who waits: %s', error)

  def _look(self) -> None:
    if not self._sync_session.are_executing:
      self._versions = []
      return
    before, self._versions = (
      self._versions,
      self._sync_session.versions_awaited(),
    )
    if not set(before) & set(self._versions):
      self._silent.clear()
      return
    self._sync_session.dismiss_idle()
    found = health.incarnations(self._workers())
    for worker, incarnation in found.items():
      if incarnation is None:
        self._note_silence(worker)
      else:
        self._note_answer(worker, incarnation)

  def _note_silence(self, worker: spec_lib.Task) -> None:
    since = self._silent.setdefault(worker, time.monotonic())
    secs = time.monotonic() - since
    if secs < self._timeout_secs:
      return
    if worker not in self._left_out:
      logging.warning(
        '%s has been silent for %.0f seconds while others wait for its '
        'gradients. Updates go on without it until it is back.',
        worker,
        secs,
      )
    # Once more, too: on the ps, what it had begun may have gone on.
    self._sync_session.leave_out(self._index_of(worker))
    self._left_out.add(worker)

  def _note_answer(self, worker: spec_lib.Task, incarnation: int) -> None:
    self._silent.pop(worker, None)
    if worker in self._left_out:
      self._left_out.discard(worker)
      logging.warning('%s answers again.', worker)
    if self._known.get(worker, incarnation) != incarnation:
      # What it was to make, it will not make any more.
      self._sync_session.give_up_on(self._index_of(worker))
    self._known[worker] = incarnation
