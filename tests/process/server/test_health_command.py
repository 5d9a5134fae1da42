"""The command `tfps health` beside a real server: alive, frozen and gone."""

import os
import pathlib
import subprocess
import sys

import pytest

import tfps

_SCRIPT = pathlib.Path(sys.executable).with_name('tfps')


def _health(cluster, task, *words):
  """Runs the command in the environment of a task."""
  env = {**os.environ, 'TF_CONFIG': cluster.with_task(task).tf_config()}
  return subprocess.run(
    [_SCRIPT, 'health', *words],
    env=env,
    capture_output=True,
    text=True,
    timeout=60,
  )


@pytest.mark.tfps_cluster(workers=1, ps=1, processes=True)
def test_a_probe_tells_a_server_that_answers_from_a_frozen_one(tfps_cluster):
  cluster, ps = tfps_cluster.cluster, tfps.Task('ps', 0)
  port = cluster.address(ps).rpartition(':')[2]
  for words in ((), ('--live',)):
    done = _health(cluster, ps, *words)
    assert (done.returncode, done.stderr) == (0, '')
    assert done.stdout == f'ps:0 at 127.0.0.1:{port} is alive.\n'

  own = f'127.0.0.1:{cluster.address(tfps.Task("worker", 0)).split(":")[1]}'
  done = _health(cluster, ps, f'--address={own}')
  assert (done.returncode, done.stdout) == (
    0,
    f'The server at {own} is alive.\n',
  )

  tfps_cluster.freeze('ps', 0)
  try:
    for words in ((), ('--live',)):
      done = _health(cluster, ps, '--timeout_secs=1', *words)
      assert (done.returncode, done.stdout) == (1, '')
      assert done.stderr == (
        f'ps:0 at 127.0.0.1:{port} does not answer within 1 seconds.\n'
      )
  finally:
    tfps_cluster.thaw('ps', 0)

  tfps_cluster.kill('ps', 0)
  done = _health(cluster, ps)
  assert done.returncode == 1
  assert done.stderr == f'ps:0 at 127.0.0.1:{port} is unreachable.\n'
  assert _health(cluster, ps, '--live').returncode == 0


@pytest.mark.tfps_cluster(workers=1, ps=1, processes=True)
def test_a_server_of_another_task_is_not_this_one(tfps_cluster):
  jobs = dict(tfps_cluster.cluster.jobs)
  swapped = tfps.Cluster(
    {'ps': jobs['worker'], 'worker': jobs['ps']}, tfps.Task('ps', 0)
  )
  done = _health(swapped, tfps.Task('ps', 0))
  assert done.returncode == 1
  assert done.stderr.endswith(' is worker:0, not ps:0.\n')
