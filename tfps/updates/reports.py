"""What has become of gradients."""

import dataclasses

from tfps.updates import staleness as staleness_lib
from tfps.updates.sync import session as session_lib


@dataclasses.dataclass(frozen=True)
class UpdatesReport:
  """What has become of the gradients that optimizers were given.

  Attributes:
    updates: how many were made of them.
    staleness: how many of these were of each staleness, which is the number of
      updates since the parameters were read; the last has all above. With
      `Sync`, all have none.
    late: with `Sync`, how many gradients came too late for their update, and
      were dropped.
    short: with `Sync`, how many updates were made of fewer gradients than asked
      for, as there were no more, or workers had been left out.
    repeated: with `Sync`, how many updates were begun once more, as the worker
      that made them was lost. On some ps they may have been made twice.
  """

  updates: int
  staleness: tuple[int, ...] = ()
  late: int = 0
  short: int = 0
  repeated: int = 0

  @property
  def mean_staleness(self) -> float:
    """Averaged over the updates."""
    number = sum(self.staleness)
    total = sum(age * count for age, count in enumerate(self.staleness))
    return total / number if number else 0.0


def report(
  sync_session: session_lib.SyncSession | None,
  staleness: staleness_lib.Staleness | None,
) -> UpdatesReport:
  """What a strategy's have counted.

  Raises:
    tf.errors.OpError: a ps is lost.
  """
  if sync_session is not None and sync_session.makes_one_update:
    point = sync_session.total()
    return UpdatesReport(
      updates=point.updates,
      staleness=(point.updates,),
      late=point.late,
      short=point.short,
      repeated=point.repeated,
    )
  ages = staleness.histogram() if staleness else ()
  return UpdatesReport(updates=sum(ages), staleness=ages)
