"""An enclosed task under a supervisor of its own, as engines start it."""

import os
import subprocess
import sys

import pytest

from tests.support import enclosures
from tests.support import programs
from tfps._utils import ports
from tfps.cluster import spec as spec_lib
from tfps.launch import job as job_lib

pytestmark = enclosures.needed()


def _run(certs, program, *options):
  """Runs worker:0 of a cluster to its end."""
  cluster = spec_lib.Cluster(
    {job: [f'127.0.0.1:{ports.pick()}'] for job in ('ps', 'worker')},
    source='the test',
  )
  job = job_lib.Job(tuple(map(str, program)), certificates=certs)
  return subprocess.run(
    [
      *(sys.executable, '-m', 'tfps.launch.task', *options),
      *(*job.secure_options(), '--', *job.command()),
    ],
    env={
      **os.environ,
      'TF_CONFIG': cluster.with_task(enclosures.WORKER).tf_config(),
    },
    stdin=subprocess.DEVNULL,
    capture_output=True,
    text=True,
    timeout=120,
  )


def test_it_has_its_own_certificate(tmp_path):
  certs = enclosures.make(tmp_path / 'certs')
  shows = tmp_path / 'shows.py'
  shows.write_text(
    "import os; print(os.environ['TFPS_CERT'], os.environ['TFPS_ENCLOSED'])"
  )
  done = _run(certs, [shows])
  assert (done.returncode, done.stdout) == (0, f'{certs}/worker-0.pem 1\n')


def test_a_task_without_a_certificate_is_named(tmp_path):
  certs = enclosures.make(tmp_path / 'certs', enclosures.PS)
  done = _run(certs, ['-m', 'this'])
  assert done.returncode == 1
  assert f"'{certs}/worker-0.pem', which cannot be read" in done.stderr


@pytest.mark.exhaustive
def test_it_is_killed_and_started_again_when_its_server_is_silent(tmp_path):
  certs = enclosures.make(tmp_path / 'certs')
  program = [programs.FOLDER / 'freezes.py', tmp_path]
  done = _run(certs, program, '--silent_secs=2', '--max_restarts=1')
  assert done.returncode == 0, done.stderr
  said = 'worker:0 has not answered for 2 seconds. Killing it.'
  assert said in done.stderr
  assert (tmp_path / 'twice').exists()
