"""Tasks of a step of Slurm, on nodes that are network namespaces."""

import contextlib
import re

from tests.launch import engine as engine_lib
from tests.launch.engines import slurm_cluster
from tests.support import waiting

_ENDED = ('CANCELLED', 'COMPLETED', 'FAILED', 'NODE_FAIL', 'TIMEOUT')


class SlurmJob(engine_lib.Running):
  """A job that was submitted, or refused.

  Args:
    cluster: where.
    folder: the working directory.
    command: the launcher with its words.
    env: variables that are added to the environment.
  """

  def __init__(self, cluster, folder, command, env):
    self._cluster = cluster
    self._folder = folder
    settings = [f'{name}={value}' for name, value in env.items()]
    self._submitted = cluster.run('env', *settings, *command, cwd=folder)
    found = re.search(r'Submitted job (\d+)', self._submitted.stdout)
    self.id = found and found[1]

  def wait(self, timeout_secs):
    if self.id is None:
      return self._submitted.returncode
    waiting.until(
      lambda: self.facts()['JobState'] in _ENDED,
      timeout_secs=timeout_secs,
      say=lambda: f'{self.facts()}: {self.output()}',
    )
    status, signal = map(int, self.facts()['ExitCode'].split(':'))
    return 128 + signal if signal else status

  def facts(self):
    """What Slurm says of the job."""
    return self._cluster.job(self.id)

  def output(self):
    path = self._folder / f'slurm-{self.id}.out'
    said = path.read_text(errors='replace') if path.exists() else ''
    return self._submitted.stdout + self._submitted.stderr + said

  def log(self, task):
    name = f'{task.replace(":", "-")}.log'
    path = self._folder / 'logs' / str(self.id) / name
    return path.read_text(errors='replace') if path.exists() else ''

  def stop(self):
    if self.id is not None:
      self._cluster.run('scancel', self.id)


class Slurm(engine_lib.Engine):
  """`tfps launch --engine=slurm` on a cluster of three nodes."""

  name = 'slurm'

  def missing(self):
    return slurm_cluster.missing()

  @contextlib.contextmanager
  def up(self, folder):
    with slurm_cluster.SlurmCluster(folder) as self.cluster:
      yield

  def run(self, folder, request):
    command = request.command('--engine=slurm')
    return SlurmJob(self.cluster, folder, command, request.env)

  def mistakes(self):
    return [
      engine_lib.Mistake(
        'more tasks than the cluster has CPUs',
        'job of 1 chief, 2 ps, 100 workers: .* configuration is not available',
        sizes={'num_workers': 100},
      ),
      engine_lib.Mistake(
        'an option that sbatch does not have',
        "unrecognized option '--partitions=low'",
        words=['--sbatch=--partitions=low'],
      ),
      engine_lib.Mistake(
        'a partition that is not there',
        'invalid partition specified: nowhere',
        words=['--sbatch=--partition=nowhere'],
      ),
      engine_lib.Mistake(
        'no sbatch',
        'sbatch is not in PATH.*--dry_run',
        env={'PATH': '/nowhere'},
      ),
      engine_lib.Mistake(
        'no controller that answers',
        'Unable to contact slurm controller',
        env={'SLURM_CONF': str(self.cluster.unreachable_conf())},
      ),
    ]
