import pytest

from tfps import errors
from tfps.cluster.spec import Cluster
from tfps.cluster.spec import Task
from tfps.server import registration

_JOBS = {
  'ps': ['localhost:1', 'localhost:2'],
  'worker': ['localhost:3', 'localhost:4'],
}
_WORKER = Task('worker', 0)
_PS = Task('ps', 0)


def _of(task: Task, **jobs) -> Cluster:
  return Cluster({**_JOBS, **jobs}, task)


@pytest.mark.parametrize(
  'theirs',
  [
    _of(_PS),
    _of(_PS, ps={0: 'localhost:0', 1: 'localhost:2'}),
    _of(_PS, ps=['127.0.0.1:1', '127.0.0.1:2']),
    _of(_PS, worker={}),
    _of(_PS, ps={0: 'localhost:1'}),
    _of(_PS, chief=['localhost:9']),
  ],
  ids=['equal', 'port 0', 'names', 'no workers', 'itself only', 'a chief more'],
)
def test_what_does_not_contradict_is_agreed_on(theirs):
  registration.check_same_cluster(_of(_WORKER), theirs)


_LATER = Cluster(
  {**_JOBS, 'worker': [*_JOBS['worker'], 'h:5', 'h:6']}, Task('worker', 2)
)


@pytest.mark.parametrize(
  'pair', [(_LATER, _of(_PS)), (_of(_WORKER), _LATER)], ids=['ours', 'theirs']
)
def test_a_worker_may_have_come_later(pair):
  registration.check_same_cluster(*pair)


def test_a_worker_that_has_come_later_is_in_the_same_cluster():
  with pytest.raises(
    errors.ClusterMismatchError, match='worker:2 and ps:0 disagree on worker:1'
  ):
    registration.check_same_cluster(
      _LATER, _of(_PS, worker=['localhost:3', 'localhost:7'])
    )


@pytest.mark.parametrize(
  ('theirs', 'task'),
  [
    (_of(_PS, ps=['localhost:1', 'localhost:7']), 'ps:1'),
    (_of(_PS, worker=['localhost:3']), 'worker:1'),
    (_of(_PS, worker=['localhost:3', 'localhost:4', 'h:5']), 'worker:2'),
    (_of(_PS, ps=['localhost:1', 'localhost:2', 'localhost:8']), 'ps:2'),
  ],
  ids=['another port', 'a worker less', 'a worker more', 'a ps more'],
)
def test_what_contradicts_is_named(theirs, task):
  with pytest.raises(
    errors.ClusterMismatchError, match=f'worker:0 and ps:0 disagree on {task}'
  ):
    registration.check_same_cluster(_of(_WORKER), theirs)
