"""What Slurm adds to what every engine does: a real one, and real jobs."""

import pathlib
import re
import subprocess
import sys

import pytest

from tests.launch.engines import reap_namespace
from tests.launch.engines import slurm as slurm_lib
from tests.launch.engines import slurm_cluster
from tests.support import waiting

pytestmark = [
  pytest.mark.exhaustive,
  pytest.mark.skipif(
    bool(slurm_cluster.missing()), reason=slurm_cluster.missing()
  ),
]

_JOB_SECS = 240
_STEPS = 400
_SCRIPTS = sorted(
  (pathlib.Path(__file__).parents[2] / 'launch' / 'slurm').glob('*.sbatch')
)


@pytest.fixture(scope='module')
def engine(tmp_path_factory):
  engine = slurm_lib.Slurm()
  with engine.up(tmp_path_factory.mktemp('slurm')):
    yield engine


@pytest.fixture
def words(data, tmp_path):
  directory = f'--directory={tmp_path}/snapshots'
  return [f'--data={data}', directory, f'--steps={_STEPS}']


def test_workers_have_gpus_and_nodes_of_their_own(engine, words, tmp_path):
  # The step lists n1 first, which has the GPUs and so its last processes.
  job = engine.start(
    tmp_path,
    [*words, '--shows=CUDA_VISIBLE_DEVICES'],
    options=[
      '--gpus_per_worker=1',
      '--sbatch_ps=--partition=cpu',
      '--sbatch_ps=--nodes=2',
      '--sbatch_workers=--partition=gpu',
    ],
  )
  assert job.wait(_JOB_SECS) == 0, job.output()
  assert job.number('COUNT') == _STEPS
  gpus = {'chief:0': -1, 'ps:0': -1, 'ps:1': -1, 'worker:0': 0, 'worker:1': 1}
  for task, gpu in gpus.items():
    assert job.says(task, f'^CUDA_VISIBLE_DEVICES={gpu}$'), job.log(task)
  nodes = {'ps:0': 'n2', 'ps:1': 'n3', 'worker:0': 'n1', 'worker:1': 'n1'}
  for task, node in nodes.items():
    assert job.says(task, f'is ready at {node}:'), job.log(task)


def test_a_preempted_job_is_queued_again_and_goes_on(engine, words, tmp_path):
  cluster = engine.cluster
  job = engine.start(
    tmp_path, [*words, '--pause_secs=0.3'], options=['--requeue']
  )
  job.wait_for('chief:0', r'^AT [1-9]\d\d$', _JOB_SECS)
  urgent = cluster.run(
    *('srun', '--partition=high', '--exclusive', '--nodes=3', 'true')
  )
  assert urgent.returncode == 0, urgent.stderr
  assert job.wait(_JOB_SECS) == 0, job.output()
  assert job.facts()['Restarts'] == '1'
  begins = re.findall(r'^BEGIN (\d+)$', job.log('chief:0'), re.M)
  assert begins[0] == '0'
  assert 100 <= int(begins[1]) < _STEPS
  assert job.number('COUNT') == _STEPS
  assert 'Killing' not in job.output()
  _assert_idle(cluster)


def test_a_cancelled_job_is_not_queued_again(engine, words, tmp_path):
  job = engine.start(
    tmp_path, [*words, '--pause_secs=1'], options=['--requeue']
  )
  job.wait_for('chief:0', r'^AT \d+$', _JOB_SECS)
  job.stop()
  assert job.wait(_JOB_SECS) == engine.stopped
  assert job.facts()['Restarts'] == '0'
  _assert_idle(engine.cluster)


def test_ports_follow_from_the_job_where_none_are_reserved(words, tmp_path):
  folder = tmp_path / 'slurm'
  folder.mkdir()
  with slurm_cluster.SlurmCluster(folder, reserves_ports=False) as cluster:
    engine = slurm_lib.Slurm()
    engine.cluster = cluster
    job = engine.start(tmp_path, words)
    assert job.wait(_JOB_SECS) == 0, job.output()
  assert job.number('COUNT') == _STEPS
  assert job.says('ps:0', r'^tfps: ps:0 is ready at n1:1\d{4}\.$')


@pytest.mark.parametrize('script', _SCRIPTS, ids=lambda path: path.stem)
def test_slurm_takes_the_scripts(engine, script, tmp_path):
  tried = engine.cluster.run('sbatch', '--test-only', str(script), cwd=tmp_path)
  assert tried.returncode == 0, tried.stderr
  assert 'to start at' in tried.stderr


_LEFT_ALONE = """
import pathlib, sys, time
from tests.launch.engines import slurm_cluster
from tests.support import waiting

with slurm_cluster.SlurmCluster(pathlib.Path(sys.argv[1])) as cluster:
  cluster.run('sbatch', '--ntasks=3', '--wrap', 'srun sleep 600')
  waiting.until(lambda: len(cluster.job_processes()) > 6)
  print(cluster.namespace, flush=True)
  time.sleep(600)
"""


def test_a_cluster_is_gone_with_the_process_that_started_it(tmp_path):
  with subprocess.Popen(
    [sys.executable, '-c', _LEFT_ALONE, str(tmp_path)],
    stdout=subprocess.PIPE,
    text=True,
  ) as process:
    namespace = process.stdout.readline().strip()
    assert len(reap_namespace.members(namespace)) > 10
    process.kill()
  waiting.until(
    lambda: not reap_namespace.members(namespace),
    timeout_secs=30,
    say=lambda: f'{reap_namespace.members(namespace)} still run',
  )


def _assert_idle(cluster):
  waiting.until(
    lambda: not cluster.job_processes(),
    timeout_secs=30,
    say=lambda: f'{cluster.job_processes()} still run',
  )
