import pytest
import tensorflow as tf

import tfps
from tfps import testing


@pytest.mark.parametrize(
  ('num_workers', 'num_ps', 'name'), [(0, 1, 'num_workers'), (1, 0, 'num_ps')]
)
def test_a_cluster_without_tasks_is_refused(num_workers, num_ps, name):
  with pytest.raises(ValueError, match=f'{name} is 0'):
    testing.InProcessCluster(num_workers, num_ps)


def test_random_faults_of_no_task_are_refused(tfps_cluster):
  jobs = ('evaluator',)
  with pytest.raises(ValueError, match=r"jobs \('evaluator',\)\. Give jobs of"):
    testing.random_faults(tfps_cluster, seed=0, until_secs=1, jobs=jobs)


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


def test_clusters_come_and_go_with_bounded_threads():
  threads = []
  for _ in range(6):
    with testing.InProcessCluster(num_workers=2, num_ps=2) as cluster:
      assert _count(cluster.cluster, 20) == 20
    threads.append(_num_threads())
  assert threads[-1] - threads[1] < 50


@pytest.mark.quick
def test_clusters_of_several_shapes_in_turn():
  for num_workers, num_ps in ((1, 1), (2, 1), (1, 2)):
    with testing.InProcessCluster(num_workers, num_ps) as cluster:
      assert cluster.cluster.num_workers == num_workers
      assert cluster.cluster.num_ps == num_ps
      assert _count(cluster.cluster, 10) == 10


def _num_threads() -> int:
  with open('/proc/self/status') as status:
    facts = dict(line.split(':', 1) for line in status)
  return int(facts['Threads'])


def test_more_workers_than_threads_for_them_are_refused():
  with (
    testing.InProcessCluster(num_workers=1, num_ps=1),
    pytest.raises(RuntimeError, match='Set TF_NUM_INTEROP_THREADS=10028'),
  ):
    testing.InProcessCluster(num_workers=10_000, num_ps=1)


def test_stopping_twice_is_harmless():
  cluster = testing.InProcessCluster(num_workers=1, num_ps=1)
  cluster.stop()
  cluster.stop()
