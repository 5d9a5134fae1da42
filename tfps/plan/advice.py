"""Suggests changes that make a job faster, with estimated gains."""

from collections.abc import Iterator
import dataclasses
from typing import Any

from tfps.plan import jobs
from tfps.plan import messages as messages_lib
from tfps.plan import predictions

_ENOUGH = 0.95  # ratio of the best rate
_MAX_PS_FACTOR = 4
_MIN_GAIN = 1.1  # ratio of rates


@dataclasses.dataclass(frozen=True)
class Option:
  """A change of a job.

  Attributes:
    what: description of the change.
    steps_per_sec: estimated steps of all workers per second, with the change.
    gain: ratio of this rate to that without the change.
  """

  what: str
  steps_per_sec: float
  gain: float

  def __str__(self) -> str:
    return (
      f'{self.what}: {self.steps_per_sec:.4g} steps/s, {self.gain:.2f} times'
    )


def estimate(job: jobs.Job) -> float:
  """Returns estimated steps per second of all workers, without contention.

  It is faster than a simulation of all workers, but less exact: the rate of one
  worker alone times the number of workers, limited by the busiest link or ps.

  Args:
    job: the job.
  """
  alone = predictions.predict(
    dataclasses.replace(
      job,
      num_workers=1,
      mode='async',
      backup_workers=0,
      by_host=False,
      host_of=_hosts_of_one(job),
    )
  )
  messages = messages_lib.of(job)
  num_bytes = predictions.bytes_of_links(job, messages)
  bound = predictions.bound_secs(job, num_bytes, messages)
  limit = 1 / bound if bound else float('inf')
  return min(alone.steps_per_sec * job.num_workers, limit)


def balanced_ps(job: jobs.Job) -> int:
  """Returns the smallest number of ps whose rate is within 5% of the best.

  Args:
    job: the job; its number of ps is a candidate.
  """
  numbers = sorted(set(_numbers_of_ps(job)))
  rates = {n: estimate(dataclasses.replace(job, num_ps=n)) for n in numbers}
  best = max(rates.values())
  return min(n for n, rate in rates.items() if rate >= _ENOUGH * best)


def options(job: jobs.Job, codecs: dict[str, tuple[Any, Any]]) -> list[Option]:
  """Returns worthwhile changes, the best first.

  Args:
    job: the planned job.
    codecs: the codecs of pulls and pushes to try, by name.

  Returns:
    Changes that gain at least 10%, or that need fewer ps.
  """
  before = estimate(job)
  found = []
  if job.host_of is None:
    number = balanced_ps(job)
    if number != job.num_ps:
      changed = dataclasses.replace(job, num_ps=number)
      found.append(_option(f'{number} ps', changed, before))
  for name, (pull, push) in codecs.items():
    changed = dataclasses.replace(job, pull=pull, push=push)
    found.append(_option(name, changed, before))
  if job.mode == 'async' and not job.prefetch:
    changed = dataclasses.replace(job, prefetch=1)
    found.append(_option('prefetch 1', changed, before))
  if job.mode == 'sync' and not job.backup_workers and not job.by_host:
    changed = dataclasses.replace(job, by_host=True)
    if len(changed.pushers) < job.num_workers:
      found.append(_option('by host', changed, before))
  fewer_ps = [o for o in found if o.what.endswith(' ps') and _saves(o, job)]
  better = [o for o in found if o.gain >= _MIN_GAIN]
  return sorted(
    [*better, *(o for o in fewer_ps if o not in better)], key=lambda o: -o.gain
  )


def _saves(option: Option, job: jobs.Job) -> bool:
  return int(option.what.split()[0]) < job.num_ps


def _option(what: str, job: jobs.Job, before: float) -> Option:
  rate = estimate(job)
  return Option(what, rate, rate / before)


def _numbers_of_ps(job: jobs.Job) -> Iterator[int]:
  number = 1
  while number <= max(_MAX_PS_FACTOR * job.num_ps, job.num_workers // 2, 2):
    yield number
    number = max(number + 1, round(number * 1.25))
  yield job.num_ps


def _hosts_of_one(job: jobs.Job) -> dict[str, str] | None:
  """Returns `host_of` for a job of one worker."""
  if job.host_of is None:
    return None
  return {
    task: host
    for task, host in job.host_of.items()
    if task.startswith('ps:') or task == 'worker:0'
  }
