"""Workers between graphs wait for the chief, which starts warm for all."""

import pytest
import tensorflow as tf

_OLD = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]]  # of a, b, c and d
_OTHER = [[9.0, 9.5], [8.0, 8.5]]


@pytest.fixture
def start(start_workers, tmp_path):
  def start(path='old', timeout_secs=60):
    for name, table in (('old', _OLD), ('other', _OTHER)):
      checkpoint = tf.train.Checkpoint(table=tf.Variable(table))
      checkpoint.write(str(tmp_path / name))
    paths = tmp_path / path, tmp_path / 'other'
    return start_workers(2, 'warm_start.py', *paths, timeout_secs, num_ps=1)

  return start


def _lines(cluster, index, beginning):
  log = cluster.log('worker', index).splitlines()
  return [line for line in log if line.startswith(beginning)]


def test_each_worker_has_the_rows_that_the_chief_has_restored(start):
  cluster = start()
  for index in range(2):
    status = cluster.wait('worker', index, timeout_secs=120)
    assert status == 0, cluster.log('worker', index)[-3000:]
    assert _lines(cluster, index, 'values') == [
      'values [[7.0, 8.0], [0.0, 0.0], [1.0, 2.0], [0.0, 0.0], [0.0, 0.0], '
      '[5.0, 6.0]]',
      'values [[9.0, 9.5], [8.0, 8.5], [0.0, 0.0]]',
    ]
  assert _lines(cluster, 0, 'elsewhere') == [
    "elsewhere False {'table': (3, 6, 4)}",
    "elsewhere False {'second': (2, 3, 2)}",
  ]
  assert _lines(cluster, 1, 'elsewhere') == ['elsewhere True {}'] * 2


@pytest.mark.exhaustive
def test_a_worker_whose_chief_has_failed_says_what_it_waited_for(start):
  cluster = start('missing', timeout_secs=5)
  for index in range(2):
    assert cluster.wait('worker', index, timeout_secs=120) == 1
  assert 'missing: there is no checkpoint.' in cluster.log('worker', 0)
  assert (
    'missing: the chief has not done it within 5 seconds (timeout_secs). It '
    'may have failed, which its log tells'
  ) in cluster.log('worker', 1)
