"""Events and reports of lost tasks, for the program."""

from collections.abc import Callable
from collections.abc import Iterable
import dataclasses
import threading
import time

from absl import logging

from tfps.monitor import families
from tfps.monitor import registry as registry_lib

_COUNTERS = {'lost': families.LOST, 'back': families.RETURNED}


@dataclasses.dataclass(frozen=True)
class RecoveryEvent:
  """Loss, return, move or addition of tasks, or a repetition of steps.

  Attributes:
    kind: 'lost', of a worker; 'back', of a worker, or of a ps once its
      variables are restored; 'moved', of a ps that has another address;
      'joined', of a worker that is new in the cluster; 'repeated', of a worker
      whose interrupted execution is repeated.
    tasks: names of the tasks, such as ('ps:1',).
    set_back_secs: by how many seconds the variables of these ps were set back,
      or all variables if they were restored from a snapshot; None if this
      process did not restore them or does not know.
    steps: upper bound of the steps that are applied twice on at least one ps;
      None unless the kind is 'repeated'.
    at: time of the event, as of `time.time`.
  """

  kind: str
  tasks: tuple[str, ...]
  set_back_secs: float | None = None
  steps: int | None = None
  at: float = dataclasses.field(default_factory=time.time)

  def __str__(self) -> str:
    text = f'{self.kind} {", ".join(self.tasks)}'
    if self.set_back_secs:
      text += f' (set back by {self.set_back_secs:.1f} s)'
    if self.steps:
      text += f' (up to {self.steps} steps)'
    return text


@dataclasses.dataclass(frozen=True)
class RecoveryReport:
  """Counts of losses and repairs since a strategy was made.

  Between graphs, each worker reports what it has seen itself.

  Attributes:
    workers_lost: number of losses of a worker.
    ps_repaired: number of times that the variables of a ps were restored.
    steps_repeated: upper bound of the steps that `train` and Keras' `fit`
      applied twice on at least one ps.
  """

  workers_lost: int = 0
  ps_repaired: int = 0
  steps_repeated: int = 0

  def after(self, event: RecoveryEvent) -> 'RecoveryReport':
    """Returns the report with an event added.

    Args:
      event: the latest event, of lost, returned or repeated tasks.
    """
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
  """Counts events and passes them to a listener, whose errors are logged.

  Args:
    listener: called with each event, in the thread that noticed it; or None.

  Attributes:
    report: counts of the events so far.
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
    """Records an event; see `RecoveryEvent` for the arguments."""
    self._tell(RecoveryEvent(kind, tuple(tasks), set_back_secs))

  def tell_repeated(self, task: str, steps: int) -> None:
    """Records that steps are repeated.

    Args:
      task: name of the task that repeats them.
      steps: upper bound of the steps that are applied twice.
    """
    self._tell(RecoveryEvent('repeated', (task,), steps=steps))

  def _tell(self, event: RecoveryEvent) -> None:
    with self._lock:
      self.report = self.report.after(event)
    _count(event)
    if self._listener is None:
      return
    try:
      self._listener(event)
    except Exception:
      logging.exception('Recovery(on_event=) failed for %s', event)


def _count(event: RecoveryEvent) -> None:
  """Counts an event in this process' metrics."""
  registry = registry_lib.of_process()
  registry.note_event(str(event))
  for task in event.tasks:
    if event.kind in _COUNTERS:
      registry.add(_COUNTERS[event.kind], task=task)
    if event.steps:
      registry.add(families.REPEATED_STEPS, event.steps, task=task)
