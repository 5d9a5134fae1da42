"""How a strategy's variables are kept safe."""

import dataclasses
import math
import os
from typing import Literal

from tfps._utils import timeouts
from tfps.recovery import events


@dataclasses.dataclass(frozen=True)
class Recovery:
  """Has training go on after the loss of a ps, or of the chief.

  ```
  strategy = tfps.ParameterServerStrategy(
    cluster, recovery=tfps.Recovery('/data/run1')
  )
  ```

  All variables on the ps are saved now and then, as they stand between two
  executions: a cut. When a ps is lost, training waits until it is restarted,
  all variables go back to the last cut, and what had been scheduled goes on.
  When the chief is restarted, it goes on with the variables on the ps; where a
  ps was restarted, too, they begin with the values of the last cut.

  With a replica, each ps has, besides its own variables, those of the ps before
  it, and whatever is written to a variable is written to both. A ps that is
  lost then gets its variables from the ps after it, and nothing is set back. It
  takes twice the memory, and twice the bytes that are pushed. Where two ps are
  lost that follow each other, the first one with the last, it is as without.

  With `replicate_every_secs`, replicas are not written to with each update, but
  copied from ps to ps now and then, which costs less. A ps that is lost then
  gets its variables as they were at the last copy; what is on the others stays
  as it is.

  Attributes:
    directory: where cuts are kept, on the chief's own disk or elsewhere; for
      the chief to be restarted on another host, both must reach it.
    every_secs: how often to make a cut: what is lost, at most. Executions
      pause for as long as reading takes; writing goes on beside them.
    timeout_secs: how long to wait for a lost ps to be started again.
    take_over_secs: after how long the ps that are left serve a lost one, too.
      It goes home once it is started again. `math.inf`: never. By default 60,
      and with replicas, which others have at once, 0.1.
    replicas: on how many other ps each variable is as well: 0 or 1.
    replicate_every_secs: how often to copy variables to their replicas: what of
      the updates on a lost ps is lost, at most, besides what a copy takes.
      None: what is written to a variable is at once written to its replica.
    written_by: who writes cuts. 'chief': it gathers the values, of one ps after
      the other, so that its own disk will do. 'ps': each writes what it has,
      and reads that again, which takes neither the chief's memory nor its link;
      the directory must then be on a disk that the chief and all ps reach by
      the same name.
    max_to_keep: how many cuts to keep. One is deleted once a later one has
      been read back.
    on_event: called with a `RecoveryEvent` when a task is lost, or is back, and
      when steps are done again because of it, in whatever thread finds out; for
      example a callback's method that writes it to a log.
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
    for name in (
      'every_secs',
      'timeout_secs',
      'take_over_secs',
      'replicate_every_secs',
      'max_to_keep',
    ):
      value = getattr(self, name)
      if value is not None and not value > 0:
        raise ValueError(f'Recovery: {name}={value!r} must be positive.')
    if self.replicas not in (0, 1):
      raise ValueError(
        f'Recovery: replicas={self.replicas!r}. A variable may be on no other '
        'ps, 0, or on one, 1.'
      )
    if self.written_by not in ('chief', 'ps'):
      raise ValueError(
        f'Recovery: written_by={self.written_by!r}. Cuts are written by the '
        "'chief' or by each 'ps'."
      )
    if self.replicate_every_secs is not None and not self.replicas:
      raise ValueError(
        f'Recovery: replicate_every_secs={self.replicate_every_secs!r} and no '
        'replicas. Set replicas=1, too.'
      )

  @property
  def waits_for_restart_secs(self) -> float:
    """`take_over_secs`, or its default."""
    if self.take_over_secs is not None:
      return self.take_over_secs
    times = timeouts.current()
    if self.replicas:
      return times.restart_with_replicas_secs
    return times.restart_secs

  @property
  def moves_ps(self) -> bool:
    """Whether a ps may ever be served by another."""
    return self.waits_for_restart_secs < math.inf
