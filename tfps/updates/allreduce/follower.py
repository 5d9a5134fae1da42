"""Thread of a worker that follows the decisions about its group.

See `generations` about entries and decisions.
"""

import atexit
from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import threading
import time
from typing import Any

from absl import logging
import tensorflow as tf

from tfps import errors
from tfps._compat import collectives as compat
from tfps._utils import timeouts
from tfps.updates.allreduce import generations
from tfps.updates.allreduce import group_monitor
from tfps.updates.allreduce import notices as notices_lib
from tfps.updates.allreduce import reduction as reduction_lib


class OwnEntry:
  """Entry of this worker, which its thread repeats until it has arrived.

  Args:
    notices: has the entries.
    worker: number of this worker.

  Attributes:
    value: the entry.
  """

  def __init__(self, notices: notices_lib.Notices, worker: int) -> None:
    self.value = generations.Entry(phase=generations.LEFT)
    self._notices = notices
    self._worker = worker
    self._lock = threading.Lock()

  def change(self, **changes: Any) -> None:
    """Changes some fields; logs if the leader does not answer.

    Args:
      **changes: new values of fields.
    """
    with self._lock:
      self.value = dataclasses.replace(self.value, **changes)
      try:
        self._notices.enter(self._worker, self.value)
      except tf.errors.OpError as error:
        logging.log_first_n(
          logging.WARNING, 'Group of workers: %s', 10, errors.first_line(error)
        )

  def beat(self, place: int) -> None:
    """Gives a sign of life.

    Args:
      place: how many steps this worker's variables contain, if it does steps.

    Raises:
      tf.errors.OpError: the leader does not answer.
    """
    with self._lock:
      old = self.value
      self.value = dataclasses.replace(
        old,
        beat=old.beat + 1,
        place=place if old.phase == generations.RUNNING else old.place,
      )
      self._notices.enter(self._worker, self.value)


class Follower:
  """Gives signs of life, and aborts collectives that cannot end.

  Args:
    peers: all workers; the first one leads.
    entry: entry of this worker.
    notices: has the leader's decisions.
    reduction: learns that a change is due.
    place: returns how many steps this worker's variables contain.
    runtime_lock: held while the group of this process changes.
    step_secs: seconds to wait for workers that are alive.
    silence_secs: seconds for which the leader may not answer.

  Attributes:
    aborted: why collectives were aborted; empty if they were not.
    has_timed_out: whether that was because others did not come to a step.
    is_change_due: whether another worker waits to become a member.
  """

  def __init__(
    self,
    *,
    peers: Sequence[group_monitor.Peer],
    entry: OwnEntry,
    notices: notices_lib.Notices,
    reduction: reduction_lib.Reduction,
    place: Callable[[], int],
    runtime_lock: threading.Lock,
    step_secs: float,
    silence_secs: float,
  ) -> None:
    self.begin()
    self._leader = peers[0]
    self._entry = entry
    self._notices = notices
    self._reduction = reduction
    self._place = place
    self._runtime_lock = runtime_lock
    self._step_secs = step_secs
    self._silence_secs = silence_secs
    self._stopping = threading.Event()
    self._thread = threading.Thread(
      target=self._run, name='tfps-group', daemon=True
    )
    self._thread.start()
    atexit.register(self.stop)

  def begin(self) -> None:
    """Forgets what was noted about the generation before."""
    self.aborted = ''
    self.has_timed_out = self.is_change_due = False

  def stop(self) -> None:
    """Ends the thread; stopping twice is harmless."""
    self._stopping.set()
    self._thread.join(timeouts.current().thread_stop_secs)
    atexit.unregister(self.stop)

  def _run(self) -> None:
    since = time.monotonic()  # the leader has answered
    progress = -1, since
    while not self._stopping.wait(timeouts.current().listen_every_secs):
      try:
        with self._runtime_lock:
          place = self._place()
        self._entry.beat(place)
        state = self._notices.state()
        since = time.monotonic()
      except tf.errors.OpError as error:
        if time.monotonic() > since + self._silence_secs:
          self._abort(
            f'{self._leader.task} at {self._leader.address} does not answer: '
            f'{errors.first_line(error)}'
          )
        continue
      is_running = self._entry.value.phase == generations.RUNNING
      if progress[0] != place or not is_running or len(state.members) == 1:
        progress = place, since
      self._follow(state)
      if since > progress[1] + self._step_secs:
        self.has_timed_out = True
        self._abort('the other workers do not come to the same step')

  def _follow(self, state: generations.State) -> None:
    entry = self._entry.value
    if entry.phase not in (generations.READY, generations.RUNNING):
      return
    if state.generation != entry.generation:
      self._abort(
        f'generation {state.generation} has begun without this worker'
      )
    elif state.is_broken:
      self._abort('a worker is lost, or has left')
    elif state.is_change_due and not self.is_change_due:
      self.is_change_due = True
      with self._runtime_lock:
        self._reduction.is_change_due.assign(1.0)

  def _abort(self, reason: str) -> None:
    if not self.aborted:
      self.aborted = reason
      with self._runtime_lock:
        compat.abort(f'Collectives are aborted: {reason}.')
