"""Sees from outside when tasks that have answered no longer do.

A task that is frozen, or cut off, blocks those that talk to it, and cannot say
so itself. A task that computes still answers: its server does so in threads of
its own.
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
  """Probes tasks and reports those that have fallen silent.

  A task whose server has not come up is not waited for, nor is one that has
  ended: both refuse a connection, which is an answer, too.

  Args:
    addresses: where the tasks' servers answer.
    silent_secs: after how long without an answer to report a task.
    report: called, in the detector's thread, once for each time that a task
      falls silent.
    probe_all: asks the tasks' servers; by default `health.probe_all`.
    clock: seconds.
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
    """Probes all tasks once, as the thread does again and again."""
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
  # Only here, as a launcher that starts tasks need not wait for gRPC.
  from tfps.server import health

  return health.probe_all(addresses)
