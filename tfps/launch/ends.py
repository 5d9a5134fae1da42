"""Rules for the end of a job whose tasks have an engine's process each."""

from collections.abc import Collection
import dataclasses

from tfps.cluster import spec as spec_lib
from tfps.launch import job as job_lib


@dataclasses.dataclass(frozen=True)
class Ends:
  """The rules for the end of a job.

  Attributes:
    chief: the task whose result is that of the job.
    grace_secs: how long servers may take to end once all others are done, and
      all tasks after SIGTERM.
    evaluator_secs: how long an evaluator may take to end once training is done.
    servers: jobs whose tasks may be stopped once all others are done.
  """

  chief: spec_lib.Task
  grace_secs: float
  evaluator_secs: float = 600.0
  servers: tuple[str, ...] = ('ps',)

  @classmethod
  def of(
    cls,
    job: job_lib.Job,
    *,
    evaluator_secs: float,
    servers: tuple[str, ...] = ('ps',),
  ) -> 'Ends':
    """Returns the rules for a job.

    Args:
      job: the job.
      evaluator_secs: as the attribute.
      servers: as the attribute.
    """
    return cls(job.chief(), job.grace_secs, evaluator_secs, servers)

  def secs_left(self, left: Collection[spec_lib.Task]) -> float | None:
    """Returns how long tasks may take to end; None while one of them trains.

    Args:
      left: the tasks that have not ended.
    """
    passive = (*self.servers, job_lib.EVALUATOR)
    if self.chief in left or any(task.job not in passive for task in left):
      return None
    evaluates = any(task.job == job_lib.EVALUATOR for task in left)
    return self.evaluator_secs if evaluates else self.grace_secs
