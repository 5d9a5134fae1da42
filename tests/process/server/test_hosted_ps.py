"""A task that serves takes in another, whose own process is gone."""

import pytest
import tensorflow as tf

from tests.support import waiting
import tfps
from tfps import testing
from tfps.server import health
from tfps.server import hosted_ps
from tfps.server import ps_addresses

_HOST, _GUEST = tfps.Task('ps', 0), tfps.Task('ps', 1)


@pytest.fixture(scope='module')
def cluster():
  with testing.ProcessCluster(1, 2) as processes:
    yield processes.cluster


def hosts(cluster):
  return {_HOST: cluster.address(_HOST)}


def test_nobody_is_a_guest_who_was_not_asked_for(cluster):
  assert hosted_ps.find(_GUEST, hosts(cluster)) is None


def test_a_guest_answers_as_its_task_and_computes(cluster):
  address = cluster.address(_HOST)
  for _ in range(2):
    hosted_ps.ask(_HOST, address, _GUEST)
  waiting.until(lambda: hosted_ps.find(_GUEST, hosts(cluster)))
  found = hosted_ps.find(_GUEST, hosts(cluster))
  assert found not in (address, cluster.address(_GUEST))
  assert health.probe(_GUEST, found).state is health.State.ALIVE
  with (
    tf.Graph().as_default(),
    tf.device('/job:ps/task:1'),
    tf.compat.v1.Session(f'grpc://{found}') as session,
  ):
    assert session.run(tf.constant(1) + 2) == 3


def test_who_answers_at_two_addresses_is_found_by_its_incarnation(cluster):
  hosted_ps.ask(_HOST, cluster.address(_HOST), _GUEST)
  waiting.until(lambda: hosted_ps.find(_GUEST, hosts(cluster)))
  home, guest = cluster.address(_GUEST), hosted_ps.find(_GUEST, hosts(cluster))
  address_book = ps_addresses.PsAddressBook(cluster)
  at_home = address_book.incarnations()
  as_guest = {**at_home, 1: health.probe(_GUEST, guest).incarnation}
  for wanted, address in (
    (as_guest, guest),
    ({**at_home, 1: 123}, guest),  # nobody's
    (at_home, home),
  ):
    address_book.locate(wanted)
    assert address_book.addresses[_GUEST] == address
    assert address_book.addresses[_HOST] == cluster.address(_HOST)
  assert address_book.pop_moves() == [_GUEST, _GUEST]


def test_one_that_has_restarted_meanwhile_is_not_taken_over(cluster):
  hosted_ps.ask(_HOST, cluster.address(_HOST), _GUEST)
  waiting.until(lambda: hosted_ps.find(_GUEST, hosts(cluster)))
  address_book = ps_addresses.PsAddressBook(cluster)
  address_book._fail_over({_GUEST.index})  # as if it were still there
  assert address_book.hosted
  address_book.fail_over_if_due({_GUEST.index}, lost_secs=9.0, after_secs=0.0)
  assert address_book.addresses[_GUEST] == cluster.address(_GUEST)
  assert not address_book.hosted


def test_a_host_that_is_not_there_is_named():
  with pytest.raises(tfps.errors.UnreachableError, match='ps:0 at localhost:1'):
    hosted_ps.ask(_HOST, 'localhost:1', _GUEST)
