"""Settings of recovery from lost tasks."""

import dataclasses
import math
import numbers
import os
from typing import Literal

from tfps._utils import timeouts
from tfps.recovery import events
from tfps.security import enclosure


@dataclasses.dataclass(frozen=True)
class Recovery:
  """Lets training continue after the loss of a ps or of the chief.

  ```
  strategy = tfps.ParameterServerStrategy(
    cluster, recovery=tfps.Recovery('/data/run1')
  )
  ```

  All variables on the ps are saved periodically, between two executions, as a
  snapshot. When a ps is lost, training waits until it is restarted, restores
  all variables from the last snapshot and continues with the scheduled
  functions. A restarted chief continues with the live variables on the ps; if a
  ps was restarted, too, with the values of the last snapshot.

  With a replica, each ps also stores the variables of the ps before it, and
  each write to a variable goes to both. A lost ps gets its variables from the
  ps after it, and nothing is set back. It takes twice the memory and twice the
  pushed bytes. If two neighbours are lost (the last ps is next to the first),
  all variables are restored from the last snapshot.

  With `replicate_every_secs`, replicas are not written with each update but
  copied periodically from ps to ps, which costs less. A lost ps then gets its
  variables as of the last copy; those of the other ps stay as they are.

  Attributes:
    directory: folder of the snapshots, on the chief's own disk or elsewhere; to
      restart the chief on another host, both hosts must reach it.
    every_secs: seconds between two snapshots, the most that a loss sets back.
      Executions pause while values are read, not while they are written.
    timeout_secs: how long to wait for a lost ps to be restarted.
    take_over_secs: after how long the remaining ps serve a lost one, until it
      is restarted. `math.inf`: never. The default is 60, with replicas 0.1,
      and in an enclosure never, because no door leads to a second server.
    replicas: number of other ps that store each variable, too: 0 or 1.
    replicate_every_secs: seconds between two copies to the replicas, the most
      (besides the time of a copy) that updates on a lost ps are set back. None:
      each write to a variable is also written to its replica.
    written_by: which tasks write snapshots. 'chief': it gathers the values of
      one ps after the other, so that its own disk suffices. 'ps': each writes
      and reads its own values, which needs neither the chief's memory nor its
      network link; the directory must be on a disk that the chief and all ps
      reach by the same name.
    max_to_keep: number of snapshots to keep. One is deleted once a later one
      has been read back.
    on_event: called with a `RecoveryEvent` when a task is lost or back and when
      steps are repeated because of it, in the thread that noticed it; for
      example to write it to a log.

  Raises:
    ValueError: a value is out of range, or two do not fit each other.
  """

  directory: str | os.PathLike[str]
  every_secs: float = 60.0
  timeout_secs: float = 600.0
  take_over_secs: float | None = None
  replicas: int = 0
  replicate_every_secs: float | None = None
  written_by: Literal['chief', 'ps'] = 'chief'
  max_to_keep: int = 2
  on_event: events.Listener | None = None

  def __post_init__(self) -> None:
    if not os.fspath(self.directory):
      raise ValueError('Recovery: directory is empty. Name a folder.')
    for name, is_optional in (
      ('every_secs', False),
      ('timeout_secs', False),
      ('take_over_secs', True),
      ('replicate_every_secs', True),
    ):
      value = getattr(self, name)
      if value is None and is_optional:
        continue
      if value is None or not value > 0:
        raise ValueError(f'Recovery: {name}={value!r} must be positive.')
    if not _is_count(self.max_to_keep):
      raise ValueError(
        f'Recovery: max_to_keep={self.max_to_keep!r} must be a whole number, '
        'at least 1: of snapshots to keep.'
      )
    if self.moves_ps and enclosure.is_within():
      raise ValueError(
        f'Recovery: take_over_secs={self.take_over_secs!r} has another ps '
        'serve a lost one at a port of its own, and no door leads there: this '
        f'process is enclosed ({enclosure.VARIABLE}). Leave it out, and have '
        'lost ps restarted, as by --max_restarts.'
      )
    if self.replicas not in (0, 1):
      raise ValueError(
        f'Recovery: replicas={self.replicas!r} must be 0 or 1, the number of '
        'other ps that store each variable, too.'
      )
    if self.written_by not in ('chief', 'ps'):
      raise ValueError(
        f"Recovery: written_by={self.written_by!r} must be 'chief' or "
        "'ps', the tasks that write snapshots."
      )
    if self.replicate_every_secs is not None and not self.replicas:
      raise ValueError(
        f'Recovery: replicate_every_secs={self.replicate_every_secs!r} needs '
        'replicas=1.'
      )

  @property
  def waits_for_restart_secs(self) -> float:
    """Seconds until a lost ps is taken over."""
    if self.take_over_secs is not None:
      return self.take_over_secs
    if enclosure.is_within():
      return math.inf
    times = timeouts.current()
    if self.replicas:
      return times.restart_with_replicas_secs
    return times.restart_secs

  @property
  def moves_ps(self) -> bool:
    """Returns whether another ps may take over a lost one."""
    return self.waits_for_restart_secs < math.inf


def _is_count(value: object) -> bool:
  if isinstance(value, bool) or not isinstance(value, numbers.Integral):
    return False
  return int(value) >= 1
