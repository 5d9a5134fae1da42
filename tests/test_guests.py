"""A task that serves takes in another, whose own process is gone."""

import pytest
import tensorflow as tf

from tests import waiting
import tfps
from tfps import _guests
from tfps import _housing
from tfps import probe
from tfps import testing

pytestmark = pytest.mark.slow

_HOST, _GUEST = tfps.Task('ps', 0), tfps.Task('ps', 1)


@pytest.fixture(scope='module')
def cluster():
  with testing.ProcessCluster(1, 2) as processes:
    yield processes.cluster


def hosts(cluster):
  return {_HOST: cluster.address(_HOST)}


def test_nobody_is_a_guest_who_was_not_asked_for(cluster):
  assert _guests.find(_GUEST, hosts(cluster)) is None


def test_a_guest_answers_as_its_task_and_computes(cluster):
  address = cluster.address(_HOST)
  for _ in range(2):
    _guests.ask(_HOST, address, _GUEST)
  waiting.until(lambda: _guests.find(_GUEST, hosts(cluster)))
  found = _guests.find(_GUEST, hosts(cluster))
  assert found not in (address, cluster.address(_GUEST))
  assert probe.probe(_GUEST, found).state is probe.State.ALIVE
  with (
    tf.Graph().as_default(),
    tf.device('/job:ps/task:1'),
    tf.compat.v1.Session(f'grpc://{found}') as session,
  ):
    assert session.run(tf.constant(1) + 2) == 3


def test_a_guest_that_is_let_go_is_found_again_only_if_it_is_asked_for(cluster):
  address = cluster.address(_HOST)
  _guests.ask(_HOST, address, _GUEST)
  waiting.until(lambda: _guests.find(_GUEST, hosts(cluster)))
  before = _guests.find(_GUEST, hosts(cluster))
  _guests.let_go(_HOST, address, _GUEST)
  waiting.until(lambda: _guests.find(_GUEST, hosts(cluster)) is None)
  _guests.ask(_HOST, address, _GUEST)
  waiting.until(lambda: _guests.find(_GUEST, hosts(cluster)) == before)


def test_who_answers_at_two_addresses_is_found_by_its_incarnation(cluster):
  _guests.ask(_HOST, cluster.address(_HOST), _GUEST)
  waiting.until(lambda: _guests.find(_GUEST, hosts(cluster)))
  home, guest = cluster.address(_GUEST), _guests.find(_GUEST, hosts(cluster))
  housing = _housing.Housing(cluster)
  at_home = housing.incarnations()
  as_guest = {**at_home, 1: probe.probe(_GUEST, guest).incarnation}
  for wanted, address in (
    (as_guest, guest),
    ({**at_home, 1: 123}, guest),  # nobody's
    (at_home, home),
  ):
    housing.seek(wanted)
    assert housing.addresses[_GUEST] == address
    assert housing.addresses[_HOST] == cluster.address(_HOST)
  assert housing.forget_moves() == [_GUEST, _GUEST]


def test_a_host_that_is_not_there_is_named():
  with pytest.raises(tfps.errors.UnreachableError, match='ps:0 at localhost:1'):
    _guests.ask(_HOST, 'localhost:1', _GUEST)
