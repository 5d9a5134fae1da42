"""Workers that a coordinator admits while it readmits another one."""

from types import SimpleNamespace
from unittest import mock

import pytest
import tensorflow as tf

from tfps._compat import server_def as server_def_lib
from tfps.recovery import coordinator_failures

_JOBS = {'ps': ['h:1'], 'worker': ['h:2', 'h:3']}


@pytest.fixture
def found():
  return {('ps', 0): 1, ('worker', 0): 10, ('worker', 1): 11}


@pytest.fixture
def handler(found):
  server_def = tf.train.ServerDef(
    cluster=tf.train.ClusterSpec(_JOBS).as_cluster_def(),
    job_name='chief',
    task_index=0,
  )
  workers = [SimpleNamespace(worker_index=i) for i in range(2)]
  with mock.patch.object(coordinator_failures.FailureHandler, 'run'):
    handler = coordinator_failures.FailureHandler(
      server_def, SimpleNamespace(workers=workers), lambda: dict(found)
    )
  handler._worker_states.registry.accept({0: 10, 1: 11})
  return handler


@pytest.mark.parametrize('index', [1, 2])
def test_who_comes_during_a_readmission_is_in_use_after_the_next(
  handler, found, index
):
  told = []

  def update(server_def, **kwargs):
    del kwargs
    told.append(dict(server_def.cluster.job[1].tasks))
    if len(told) == 1:
      found['worker', index] = 12
      assert not handler.admit(index, 'h:4', 0)

  handler._note_lost(0)
  with mock.patch.object(server_def_lib, 'update', update):
    assert handler._readmit()
    assert handler.absent() == {index}
    assert handler.due.is_set()
    assert handler._readmit()
  assert told[-1][index] == 'h:4'
  assert handler.absent() == set()
