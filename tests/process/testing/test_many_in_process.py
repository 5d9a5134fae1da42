"""Clusters in a process beside others, and in a process of their own."""

import os
import subprocess
import sys

import pytest
import tensorflow as tf

import tfps
from tfps import testing


def _count(cluster: tfps.Cluster, num_steps: int) -> int:
  """Adds 1 in so many scheduled steps; the variable's value afterwards."""
  strategy = tfps.ParameterServerStrategy(cluster)
  with strategy.scope():
    count = tf.Variable(0, dtype=tf.int64, trainable=False)
  with tfps.Coordinator(strategy, timeout_secs=60) as coordinator:

    @tf.function
    def step():
      count.assign_add(1)

    for _ in range(num_steps):
      coordinator.schedule(step)
    coordinator.join()
    return int(count.numpy())


def test_this_process_comes_back_from_another_cluster():
  with testing.InProcessCluster(num_workers=1, num_ps=1) as here:
    assert _count(here.cluster, 10) == 10
    with testing.ProcessCluster(num_workers=1, num_ps=1) as processes:
      assert _count(processes.cluster, 10) == 10
    assert _count(here.cluster, 10) == 10
    assert _count(here.cluster, 10) == 10


_LARGE = """
import resource
import sys
import time
from tfps._compat import lazy_keras
lazy_keras.import_tensorflow()
import tensorflow as tf
import tfps
from tfps import testing

start = time.monotonic()
num_workers, num_ps = map(int, sys.argv[1:])
with testing.InProcessCluster(num_workers, num_ps) as cluster:
  strategy = tfps.ParameterServerStrategy(cluster.cluster)
  with strategy.scope():
    counts = [tf.Variable(0, trainable=False) for _ in range(num_ps)]

  @tf.function
  def step():
    for count in counts:
      count.assign_add(1)

  with tfps.Coordinator(strategy, timeout_secs=240) as coordinator:
    for _ in range(1000):
      coordinator.schedule(step)
    coordinator.join()
    values = [int(count.numpy()) for count in counts]

with open('/proc/self/status') as status:
  facts = dict(line.split(':', 1) for line in status)
megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
print('seconds', round(time.monotonic() - start), 'threads',
      int(facts['Threads']), 'megabytes', megabytes, flush=True)
print('counts', *values, flush=True)
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  ('num_workers', 'num_ps'),
  [
    (10, 2),
    (30, 5),
    (100, 10),
  ],
)
def test_many_workers_count_exactly(num_workers, num_ps):
  # A process of its own: its servers stay until the process ends. With what the
  # plugin has set for this one, each server would have threads of its own.
  env = {n: v for n, v in os.environ.items() if n != 'TF_NUM_INTEROP_THREADS'}
  done = subprocess.run(
    [sys.executable, '-c', _LARGE, str(num_workers), str(num_ps)],
    env=env,
    capture_output=True,
    text=True,
    timeout=280,
  )
  assert done.returncode == 0, done.stderr[-4000:]
  facts, counts = done.stdout.splitlines()[-2:]
  assert counts == 'counts' + num_ps * ' 1000'
  assert int(facts.split()[3]) < 20_000
