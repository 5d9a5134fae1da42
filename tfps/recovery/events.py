"""What a program is told of lost tasks."""

from collections.abc import Callable
from collections.abc import Iterable
import dataclasses
import time

from absl import logging


@dataclasses.dataclass(frozen=True)
class RecoveryEvent:
  """Something that happened to tasks.

  Attributes:
    kind: 'lost', of a worker; 'back', of a worker, or of a ps once its
      variables have values again; 'moved', of a ps that is to be found at
      another address; 'joined', of a worker that the cluster did not have.
    tasks: whom it happened to, such as ('ps:1',).
    set_back_secs: by how much variables were set back, where this process did
      it and knows; otherwise None. Those of these ps were, or all of them if
      their values came from a cut.
    at: when, by `time.time`.
  """

  kind: str
  tasks: tuple[str, ...]
  set_back_secs: float | None = None
  at: float = dataclasses.field(default_factory=time.time)


Listener = Callable[[RecoveryEvent], object]


class Events:
  """Tells a listener, if there is one; its errors are logged.

  Args:
    listener: called in whatever thread finds out.
  """

  def __init__(self, listener: Listener | None) -> None:
    self._listener = listener

  def tell(
    self,
    kind: str,
    tasks: Iterable[str],
    set_back_secs: float | None = None,
  ) -> None:
    """Tells of an event; see `RecoveryEvent`."""
    if self._listener is None:
      return
    event = RecoveryEvent(kind, tuple(tasks), set_back_secs)
    try:
      self._listener(event)
    except Exception:
      logging.exception('Recovery(on_event=) failed for %s', event)
