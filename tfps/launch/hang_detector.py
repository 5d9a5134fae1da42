"""Detects frozen or unreachable tasks by probing their servers.

A task that is frozen or cut off blocks the tasks that communicate with it and
cannot report that itself. A busy task still answers, because its server has
threads of its own.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
import threading
import time
from typing import TYPE_CHECKING

from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib

if TYPE_CHECKING:
  from tfps.server import health


class HangDetector:
  """Probes tasks and reports those that no longer answer.

  Tasks whose server has not started, or that have ended, refuse connections;
  they are not reported.

  Args:
    addresses: the addresses of the tasks' servers.
    silent_secs: seconds without an answer after which a task is reported.
    report: called in the detector's thread with a task, once each time that
      it stops answering.
    probe_all: probes the servers; by default `health.probe_all`.
    clock: returns monotonic seconds.
  """

  def __init__(
    self,
    addresses: Mapping[spec_lib.Task, str],
    *,
    silent_secs: float,
    report: Callable[[spec_lib.Task], object],
    probe_all: Callable[
      [Mapping[spec_lib.Task, str]], 'Iterable[health.Status]'
    ]
    | None = None,
    clock: Callable[[], float] = time.monotonic,
  ) -> None:
    self._addresses = dict(addresses)
    self._silent_secs = silent_secs
    self._report = report
    self._probe_all = probe_all or _probe_all
    self._clock = clock
    self._answered: dict[spec_lib.Task, float] = {}
    self._stopping = threading.Event()
    self._thread = threading.Thread(
      target=self._run, name='tfps-hang-detector', daemon=True
    )

  def __enter__(self) -> 'HangDetector':
    if self._addresses:
      self._thread.start()
    return self

  def __exit__(self, *exc_info: object) -> None:
    self._stopping.set()

  def look(self) -> None:
    """Probes all tasks once; the thread calls it periodically."""
    for status in self._probe_all(self._addresses):
      self._note(status)

  def _run(self) -> None:
    while not self._stopping.wait(timeouts.current().probe_every_secs):
      self.look()

  def _note(self, status: 'health.Status') -> None:
    now, task, state = self._clock(), status.task, status.state.name
    if state == 'ALIVE':
      self._answered[task] = now
    elif state != 'HUNG':
      self._answered.pop(task, None)
    elif now - self._answered.get(task, now) >= self._silent_secs:
      del self._answered[task]
      self._report(task)


def _probe_all(
  addresses: Mapping[spec_lib.Task, str],
) -> 'Iterable[health.Status]':
  # Imported late, so that a launcher starts tasks without waiting for gRPC.
  from tfps.server import health

  return health.probe_all(addresses)
