"""Thread of the worker that leads a group; see `generations`."""

import atexit
from collections.abc import Mapping
from collections.abc import Sequence
import threading
import time

from absl import logging
import tensorflow as tf

from tfps import errors
from tfps._utils import timeouts
from tfps.updates.allreduce import generations
from tfps.updates.allreduce import group_monitor
from tfps.updates.allreduce import notices as notices_lib


class Leader:
  """Decides about the generations of a group, in a thread.

  Args:
    peers: all workers.
    notices: has their entries.
    silence_secs: seconds for which a worker may give no sign of life.
  """

  def __init__(
    self,
    peers: Sequence[group_monitor.Peer],
    notices: notices_lib.Notices,
    *,
    silence_secs: float,
  ) -> None:
    self._peers = peers
    self._notices = notices
    self._silence_secs = silence_secs
    self._begun = time.monotonic()
    self._detector = group_monitor.LossDetector(peers, silence_secs)
    self._state = generations.State()
    # For each worker, its last beat and when it came.
    self._beats: dict[int, tuple[tuple[int, int], float]] = {}
    self._stopping = threading.Event()
    self._thread = threading.Thread(
      target=self._run, name='tfps-group-leader', daemon=True
    )
    self._thread.start()
    atexit.register(self.stop)

  def stop(self) -> None:
    """Ends the thread; stopping twice is harmless."""
    self._stopping.set()
    self._thread.join(timeouts.current().thread_stop_secs)
    atexit.unregister(self.stop)

  def _run(self) -> None:
    while not self._stopping.wait(timeouts.current().poll_secs):
      try:
        self._decide()
      except tf.errors.OpError as error:
        logging.warning('Group of workers: %s', errors.first_line(error))

  def _decide(self) -> None:
    entries = self._notices.entries(len(self._peers))
    lost = self._lost(entries)
    found = generations.next_state(self._state, entries, lost, len(self._peers))
    if found != self._state:
      self._state = found
      self._notices.decide(found)

  def _lost(self, entries: Mapping[int, generations.Entry]) -> set[int]:
    """Returns the workers that are dead, or have been silent for too long."""
    now = time.monotonic()
    silent = {}
    for i, entry in entries.items():
      beat = entry.incarnation, entry.beat
      if i not in self._beats or self._beats[i][0] != beat:
        self._beats[i] = beat, now
      if now > self._beats[i][1] + timeouts.current().probe_every_secs:
        silent[i] = entry
    lost = self._detector.lost(silent)
    lost |= {i for i in silent if now > self._beats[i][1] + self._silence_secs}
    # If training has begun, workers without an entry are not starting together
    # with this one.
    has_begun = any(not entry.is_new for entry in entries.values())
    if has_begun and now > self._begun + self._silence_secs:
      lost |= set(range(len(self._peers))) - set(entries)
    return lost
