"""Report of the updates made from gradients."""

import dataclasses

from tfps.updates import sessions
from tfps.updates import staleness as staleness_lib


@dataclasses.dataclass(frozen=True)
class UpdatesReport:
  """Counts of updates and of the gradients that they were made from.

  Attributes:
    updates: number of updates.
    staleness: histogram of updates by staleness, the number of updates since
      the parameters were read; the last bin has all above. With `Sync`, the
      staleness is always 0.
    late: with `Sync`, number of gradients that came too late for their update
      and were dropped.
    short: with `Sync`, number of updates made of fewer gradients than the
      policy wants, because work ended or workers were excluded.
    repeated: with `Sync`, number of updates begun again because the worker that
      made them was lost. Some ps may have applied them twice.
  """

  updates: int
  staleness: tuple[int, ...] = ()
  late: int = 0
  short: int = 0
  repeated: int = 0

  @property
  def mean_staleness(self) -> float:
    """Mean staleness over the updates."""
    number = sum(self.staleness)
    total = sum(age * count for age, count in enumerate(self.staleness))
    return total / number if number else 0.0


def report(
  sync_session: sessions.Session,
  staleness: staleness_lib.Staleness | None,
) -> UpdatesReport:
  """Returns a strategy's report.

  Args:
    sync_session: session of its workers.
    staleness: staleness of its gradients, if it is measured.

  Raises:
    tf.errors.OpError: a ps is lost.
  """
  if (point := sync_session.total()) is not None:
    return UpdatesReport(
      updates=point.updates,
      staleness=(point.updates,),
      late=point.late,
      short=point.short,
      repeated=point.repeated,
    )
  ages = staleness.histogram() if staleness else ()
  return UpdatesReport(updates=sum(ages), staleness=ages)
