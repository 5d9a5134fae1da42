"""Parser of the flags that describe a cluster."""

from collections.abc import Sequence
from typing import Any

from tfps.cluster import validation

NAMES = ('job_name', 'task_index', 'ps_hosts', 'worker_hosts', 'chief_hosts')


def given(flag_values: Any) -> dict[str, Any]:
  """Returns the cluster's flags that have a value.

  A program may have defined these flags itself, in the classic way: hosts as
  one string, '' for none, and a task index that is 0 unless given.

  Args:
    flag_values: an `absl.flags.FlagValues` that defines all of `NAMES`.

  Returns:
    Flag name -> value.
  """
  values = {name: flag_values[name].value for name in NAMES}
  if not values['job_name'] and flag_values['task_index'].using_default_value:
    del values['task_index']
  return {
    n: v for n, v in values.items() if v is not None and v not in ('', [])
  }


def parse(
  flag_values: Any,
) -> tuple[dict[str, list[str]], tuple[str, int], str]:
  """Reads a cluster from flags.

  Args:
    flag_values: an `absl.flags.FlagValues` that defines all of `NAMES`.

  Returns:
    The addresses of each job, this process' job and index, and the names of the
    flags, for error messages.

  Raises:
    ValueError: a flag is missing or wrong.
  """
  values = given(flag_values)
  source = ', '.join(f'--{name}' for name in values)
  task = _task(values)
  jobs = {
    job: _hosts(values[f'{job}_hosts'], job)
    for job in validation.JOBS
    if f'{job}_hosts' in values
  }
  return jobs, task, source


def _task(values: dict[str, Any]) -> tuple[str, int]:
  _require(values, 'job_name', 'Say which task this process runs')
  job = validation.job_of_task(values['job_name'], '--job_name')
  needed = ('ps_hosts', 'worker_hosts') if job == 'ps' else ('worker_hosts',)
  for name in needed:  # workers may train without ps
    _require(values, name, 'Give every task the same hosts')
  if job in ('ps', 'worker'):
    _require(values, 'task_index', f'Say which {job} this process runs')
  return job, validation.index(values.get('task_index', 0), '--task_index')


def _require(values: dict[str, Any], name: str, remedy: str) -> None:
  if name not in values:
    others = ' '.join(f'--{n}={_text(v)}' for n, v in values.items())
    raise ValueError(
      f'--{name} is missing or empty beside {others or "no other flag"}. '
      f'{remedy}, with --{name}=...'
    )


def _hosts(value: str | Sequence[str], job: str) -> list[str]:
  hosts = value.split(',') if isinstance(value, str) else value
  return [
    validation.address(host.strip(), f'--{job}_hosts: {job}:{i}')
    for i, host in enumerate(hosts)
  ]


def _text(value: Any) -> str:
  return ','.join(value) if isinstance(value, list) else str(value)
