"""What a program is told of lost tasks."""

from collections.abc import Callable
from collections.abc import Iterable
import dataclasses
import threading
import time

from absl import logging


@dataclasses.dataclass(frozen=True)
class RecoveryEvent:
  """Something that happened to tasks.

  Attributes:
    kind: 'lost', of a worker; 'back', of a worker, or of a ps once its
      variables have values again; 'moved', of a ps that is to be found at
      another address; 'joined', of a worker that the cluster did not have;
      'repeated', of who had begun an execution that is done again.
    tasks: whom it happened to, such as ('ps:1',).
    set_back_secs: by how much variables were set back, where this process did
      it and knows; otherwise None. Those of these ps were, or all of them if
      their values came from a cut.
    steps: how many of its steps, at most, are thereby applied twice on one ps
      or more; None but of 'repeated'.
    at: when, by `time.time`.
  """

  kind: str
  tasks: tuple[str, ...]
  set_back_secs: float | None = None
  steps: int | None = None
  at: float = dataclasses.field(default_factory=time.time)


@dataclasses.dataclass(frozen=True)
class RecoveryReport:
  """What has happened since a strategy was made, as far as it knows.

  Between graphs, each worker tells of its own: workers know nothing of each
  other, and each finds by itself that a ps is back.

  Attributes:
    workers_lost: how often a worker was lost.
    ps_repaired: how often a ps had its variables put back.
    steps_repeated: how many steps, at most, were applied twice on one ps or
      more, by `train` and Keras' `fit`.
  """

  workers_lost: int = 0
  ps_repaired: int = 0
  steps_repeated: int = 0

  def after(self, event: RecoveryEvent) -> 'RecoveryReport':
    """The report once this, too, has happened."""
    jobs = [task.partition(':')[0] for task in event.tasks]
    lost = jobs.count('worker') if event.kind == 'lost' else 0
    repaired = jobs.count('ps') if event.kind == 'back' else 0
    return RecoveryReport(
      self.workers_lost + lost,
      self.ps_repaired + repaired,
      self.steps_repeated + (event.steps or 0),
    )


Listener = Callable[[RecoveryEvent], object]


class Events:
  """Counts, and tells a listener, if there is one; its errors are logged.

  Args:
    listener: called in whatever thread finds out.

  Attributes:
    report: of what has happened so far.
  """

  def __init__(self, listener: Listener | None) -> None:
    self.report = RecoveryReport()
    self._listener = listener
    self._lock = threading.Lock()

  def tell(
    self,
    kind: str,
    tasks: Iterable[str],
    set_back_secs: float | None = None,
  ) -> None:
    """Tells of an event; see `RecoveryEvent`."""
    self._tell(RecoveryEvent(kind, tuple(tasks), set_back_secs))

  def tell_repeated(self, task: str, steps: int) -> None:
    """Tells of steps that are applied twice, at most."""
    self._tell(RecoveryEvent('repeated', (task,), steps=steps))

  def _tell(self, event: RecoveryEvent) -> None:
    with self._lock:
      self.report = self.report.after(event)
    if self._listener is None:
      return
    try:
      self._listener(event)
    except Exception:
      logging.exception('Recovery(on_event=) failed for %s', event)
