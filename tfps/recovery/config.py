"""How a strategy's variables are kept safe."""

import dataclasses
import os

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
  When the chief is restarted, its variables begin with the values of the last
  cut.

  With a replica, each ps has, besides its own variables, those of the ps before
  it, and whatever is written to a variable is written to both. A ps that is
  lost then gets its variables from the ps after it, and nothing is set back. It
  takes twice the memory, and twice the bytes that are pushed. Where two ps are
  lost that follow each other, the first one with the last, it is as without.

  Attributes:
    directory: where cuts are kept, on the chief's own disk or elsewhere; for
      the chief to be restarted on another host, both must reach it.
    every_secs: how often to make a cut: what is lost, at most. Executions
      pause for as long as reading takes; writing goes on beside them.
    timeout_secs: how long to wait for a lost ps to be started again.
    take_over_secs: after how long the ps that are left serve a lost one, too.
      It goes home once it is started again. None: never.
    replicas: on how many other ps each variable is as well: 0 or 1.
    max_to_keep: how many cuts to keep. One is deleted once a later one has
      been read back.
    on_event: called with a `RecoveryEvent` when a task is lost, or is back, and
      when steps are done again because of it, in whatever thread finds out; for
      example a callback's method that writes it to a log.
  """

  directory: str | os.PathLike[str]
  every_secs: float = 60.0
  timeout_secs: float = 600.0
  take_over_secs: float | None = 60.0
  replicas: int = 0
  max_to_keep: int = 2
  on_event: events.Listener | None = None

  def __post_init__(self) -> None:
    if not os.fspath(self.directory):
      raise ValueError('Recovery: directory is empty. Name a folder.')
    for name in (
      'every_secs',
      'timeout_secs',
      'take_over_secs',
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
