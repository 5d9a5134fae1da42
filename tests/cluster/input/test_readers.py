"""What a reader says of workers that do not fit or do not go on."""

import types

import numpy as np
import pytest

import tfps
from tfps import input as input_lib
from tfps.input import readers
from tfps.input import split_progress
from tfps.server import health


def _queue(strategy, **options):
  with strategy.scope():
    return input_lib.SplitQueue(input_lib.Ranges(10, 5), **options)


@pytest.mark.parametrize(
  ('owner', 'progress'), [(1, 2), (2, 1), (1, 1)], ids=['progress', 'owner', '']
)
def test_silence_begins_with_an_owner_and_its_progress(
  tfps_cluster, set_timeouts, monkeypatch, owner, progress
):
  set_timeouts(peers_every_secs=0)
  strategy = tfps.BetweenGraphStrategy(tfps_cluster.cluster)
  queue = _queue(strategy, timeout_secs=10)
  executor = strategy.executor(None)
  with executor.tracing():
    own = executor.readers(queue.dataset)
  worker = tfps.Task('worker', 0)
  silent = []
  monkeypatch.setattr(own, '_find_dead', lambda _, secs: silent.append(secs))
  now = iter([100.0, 107.0, 109.0])
  monkeypatch.setattr(
    readers,
    'time',
    types.SimpleNamespace(monotonic=lambda: next(now), sleep=lambda secs: None),
  )
  states = iter([(1, 1), (owner, progress), (owner, progress)])

  def read():
    token, value = next(states)
    return np.array([value, 0]), np.array([readers._token(worker, token), 0])

  monkeypatch.setattr(own.split_progress, 'read', read)
  for _ in range(3):
    own.check_owners()
  is_same = (owner, progress) == (1, 1)
  assert silent == [{0: 0.0}, {0: 7.0 * is_same}, {0: 2.0 + 7.0 * is_same}]


@pytest.mark.tfps_cluster(workers=2, ps=1)
def test_workers_whose_batches_have_other_types_are_named(tfps_cluster):
  strategy = tfps.ParameterServerStrategy(tfps_cluster.cluster)
  queue = _queue(strategy)

  def dataset_fn(context):
    size = 1 + context.input_pipeline_id
    return queue.dataset(context).batch(size, drop_remainder=True)

  complaint = r'for worker:1 are .*\(2,\).* first are .*\(1,\).*must be of one'
  with (
    tfps.Coordinator(strategy, timeout_secs=60) as coordinator,
    pytest.raises(ValueError, match=complaint),
  ):
    coordinator.train(lambda batch: None, dataset_fn)


def test_a_worker_that_is_alive_without_progress_is_named(
  tfps_cluster, set_timeouts
):
  set_timeouts(peers_every_secs=0.05)
  cluster, worker = tfps_cluster.cluster, tfps.Task('worker', 0)
  strategy = tfps.BetweenGraphStrategy(cluster)
  queue = _queue(strategy, timeout_secs=0.2)
  status = health.probe(worker, cluster.address(worker))
  queue.split_progress.take(
    readers._token(worker, status.incarnation),
    keep=[],
    done=split_progress.ProgressUpdate(),
    owners=split_progress.Owners([], are_alive=False),
  )
  with pytest.raises(
    tfps.DeadlineError,
    match=r'0\.2 seconds .*chief:0 .* waits for worker:0 with \[0, 5\)\. Check',
  ):
    strategy.train(lambda batch: None, queue.dataset)
