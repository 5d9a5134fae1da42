"""Resolver of this process' cluster and task from flags or environment.

The first source that is set wins: the flags, `TF_CONFIG`, a Slurm step. If none
is set, the cluster is one local task.

```python
tfps.define_flags()

def main(_):
  cluster = tfps.resolve_cluster()

app.run(main)
```

Within a Slurm step, `TFPS_JOBS` assigns the step's processes to the jobs in the
order of their ids: `TFPS_JOBS=chief:1,ps:2,worker:4 srun --ntasks=7
--resv-ports=7 python train.py`. Without it, each process is a local task.
"""

from collections.abc import Mapping
import os

from absl import flags
from absl import logging

from tfps.cluster import flags as flags_lib
from tfps.cluster import slurm
from tfps.cluster import spec as spec_lib

JOBS_VARIABLE = 'TFPS_JOBS'

# Flags of ports; see `tfps.monitor.endpoint` and `tfps.monitor.dashboard`.
METRICS_FLAG = 'metrics_port'
DASHBOARD_FLAG = 'dashboard_port'

_PORTS = {
  METRICS_FLAG: 'from which to serve metrics to Prometheus',
  DASHBOARD_FLAG: 'at which the chief serves a web page of the job',
}


def define_flags(flag_values: flags.FlagValues = flags.FLAGS) -> None:
  """Defines the flags of a task, unless they are defined already.

  They describe its cluster, and the ports of its metrics and of the web page.

  Args:
    flag_values: where to define them.
  """
  if 'job_name' not in flag_values:
    flags.DEFINE_string(
      'job_name',
      None,
      'Job of this task: chief, ps, worker or evaluator.',
      flag_values=flag_values,
    )
  if 'task_index' not in flag_values:
    flags.DEFINE_integer(
      'task_index', None, 'Index of this task.', flag_values=flag_values
    )
  for job in spec_lib.JOBS:
    if f'{job}_hosts' not in flag_values:
      flags.DEFINE_list(
        f'{job}_hosts',
        None,
        f'host:port of each {job} task, joined by commas.',
        flag_values=flag_values,
      )
  for name, purpose in _PORTS.items():
    if name not in flag_values:
      flags.DEFINE_string(
        name, None, f'Port, or host:port, {purpose}.', flag_values=flag_values
      )


def resolve_cluster(
  env: Mapping[str, str] = os.environ,
  flag_values: flags.FlagValues = flags.FLAGS,
) -> spec_lib.Cluster:
  """Returns the cluster that this process is part of, with its task.

  Args:
    env: the environment, for `TF_CONFIG` and Slurm's variables.
    flag_values: the flags; skipped unless they are defined.

  Raises:
    ValueError: the source that wins is incomplete or wrong.
  """
  cluster = _resolve(env, flag_values)
  if cluster.task is None:
    raise ValueError(
      f'{cluster.source}: no task, so this process does not know its role in '
      f'{cluster.tf_config()}. Add "task": {{"type": ..., "index": ...}}.'
    )
  logging.info(
    '%s is in the cluster %s (from %s)',
    cluster.task,
    cluster.tf_config(),
    cluster.source,
  )
  return cluster


def _resolve(
  env: Mapping[str, str], flag_values: flags.FlagValues
) -> spec_lib.Cluster:
  if _has_flags(flag_values):
    return spec_lib.Cluster.from_flags(flag_values)
  if env.get('TF_CONFIG', '').strip():
    return spec_lib.Cluster.from_tf_config(env)
  if 'SLURM_PROCID' in env and env.get(JOBS_VARIABLE, '').strip():
    jobs = slurm.parse_jobs(env[JOBS_VARIABLE], JOBS_VARIABLE)
    return spec_lib.Cluster.from_slurm(env, jobs)
  return spec_lib.Cluster.local()


def _has_flags(flag_values: flags.FlagValues) -> bool:
  if any(name not in flag_values for name in flags_lib.NAMES):
    return False
  if not flag_values.is_parsed():
    raise ValueError(
      'flags: --job_name and the others are defined but not parsed. Call '
      'resolve_cluster from the main of app.run(main), or FLAGS(sys.argv) first'
    )
  return bool(flags_lib.given(flag_values))
