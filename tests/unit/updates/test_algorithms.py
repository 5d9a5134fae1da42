"""Which workers cannot add up gradients with each other, and what they say."""

import pytest
import tensorflow as tf

import tfps
from tfps.updates.allreduce import algorithms
from tfps.updates.allreduce import generations
from tfps.updates.allreduce import group_monitor

_PEERS = [
  group_monitor.Peer(tfps.Task('worker', i), f'localhost:{i + 1}')
  for i in range(3)
]


def _disagreement(own, names, *, is_first):
  state = generations.State(
    members=(0, 2), source=0, algorithms=names, is_first=is_first
  )
  return algorithms.disagreement(state, own, _PEERS)


@pytest.mark.parametrize(
  ('own', 'names', 'is_first', 'disagrees'),
  [
    (0, ('nccl', 'nccl'), True, False),
    (0, ('nccl', 'ring'), True, True),
    (2, ('nccl', 'ring'), True, True),
    # Those that have trained already go on without the one that has returned.
    (0, ('nccl', 'ring'), False, False),
    (2, ('nccl', 'ring'), False, True),
  ],
)
def test_workers_with_other_algorithms_are_named(
  own, names, is_first, disagrees
):
  problem = _disagreement(own, names, is_first=is_first)
  assert bool(problem) == disagrees
  named = 'worker:0 adds up by nccl, worker:2 adds up by ring.'
  assert (named in problem) == disagrees


@pytest.mark.parametrize(
  ('text', 'is_refused'),
  [
    ('Collective ops is aborted by: NCCL: invalid usage (run with ...).', True),
    ('Collective ops is aborted by: a worker is lost.', False),
  ],
)
def test_workers_that_nccl_refuses_are_told_to_take_a_gpu_each(
  text, is_refused
):
  error = tf.errors.InternalError(None, None, text)
  problem = algorithms.refusal(error, _PEERS[2])
  assert bool(problem) == is_refused
  assert ('worker:2' in problem) == is_refused
  assert ('CUDA_VISIBLE_DEVICES' in problem) == is_refused
