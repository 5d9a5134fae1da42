"""All stand still, or nothing is moved."""

import threading

import pytest

from tests.support import waiting
import tfps
from tfps import _standstill
from tfps.cluster.spec import Task
from tfps.server import registration

_CHIEF = Task('chief', 0)
_DEAD = Task('worker', 0)
_NOBODY = 'localhost:1'


@pytest.fixture
def place(ps_server):
  return _standstill.Place(ps_server.task, ps_server.address)


@pytest.fixture
def clients(place, mailbox):
  """What the ps, which answers in a thread, says of its clients."""
  clients = {_CHIEF: _NOBODY, _DEAD: _NOBODY}
  stopping = threading.Event()
  calls = []

  def serve():
    with place.mailbox() as own:
      while not stopping.wait(0.05):
        for message in own.take():
          if not _standstill.answer(message, own, clients):
            calls.append(_standstill.Call.of(message))

  thread = threading.Thread(target=serve)
  thread.start()
  yield clients, calls
  stopping.set()
  thread.join()
  _standstill.say_where([place], {})


def test_clients_that_are_dead_are_not_waited_for(place, clients):
  with _standstill.called(
    [place], _CHIEF, lambda: {_CHIEF: 'there:1'}
  ) as standstill:
    standstill.check()


def test_a_client_stands_until_it_is_over_and_learns_where_ps_are(
  place, clients
):
  known, calls = clients
  known[place.task] = place.address  # it is a client of its own
  moved = []

  def keep():
    waiting.until(lambda: calls)
    moved.append(calls[0].keep(place.task, place.task, place.address))

  client = threading.Thread(target=keep)
  client.start()
  with _standstill.called(
    [place], _CHIEF, lambda: {_CHIEF: 'there:1'}
  ) as standstill:
    assert client.is_alive()
    standstill.check()
  client.join(30)
  assert moved == [{_CHIEF: 'there:1'}]


def test_who_does_not_come_to_a_halt_is_named(place, clients, monkeypatch):
  monkeypatch.setattr(_standstill, '_COME_SECS', 0.2)
  known, calls = clients
  known[place.task] = place.address
  with (
    pytest.raises(tfps.DeadlineError, match='ps:0 had not come to a halt'),
    _standstill.called([place], _CHIEF, lambda: {_CHIEF: 'there:1'}),
  ):
    raise AssertionError('It is not on.')
  # Who is late has nothing to stand still for.
  waiting.until(lambda: calls)
  assert calls[0].keep(place.task, place.task, place.address)


def test_a_client_does_not_wait_for_a_chief_that_is_dead(place, mailbox):
  call = _standstill.Call('1', place)
  _standstill._Notice('1', {}).post(mailbox)
  assert call.keep(place.task, _CHIEF, _NOBODY) == {}


def test_it_can_be_too_late(place, clients, monkeypatch):
  monkeypatch.setattr(_standstill, '_ACT_SECS', 0.0)
  with (
    _standstill.called(
      [place], _CHIEF, lambda: {_CHIEF: 'there:1'}
    ) as standstill,
    pytest.raises(tfps.DeadlineError, match='too late'),
  ):
    standstill.check()


def test_who_says_hello_meanwhile_waits(place, mailbox, monkeypatch):
  monkeypatch.setattr(_standstill, '_WAIT_SECS', 0.2)
  cluster = tfps.Cluster({'ps': [place.address], 'worker': ['localhost:2']})

  def hello(*, chief):
    registration.Registration(
      cluster, _DEAD, 'localhost:2', chief=chief, servers=[place.task]
    ).expect()

  _standstill._Notice('2', {}).post(mailbox)
  with pytest.raises(tfps.UnreachableError, match='been moving variables'):
    hello(chief=False)
  _standstill.answer('{"who_is_there": "2"}', mailbox, {_DEAD: _NOBODY})
  with pytest.raises(tfps.UnreachableError, match='been moving variables'):
    hello(chief=False)  # it is not the process that is known
  hello(chief=True)  # which ends what another chief has begun
  _standstill.say_where([place], {})
  hello(chief=False)


def test_who_is_waited_for_does_not_wait_to_say_hello_again(place, mailbox):
  cluster = tfps.Cluster({'ps': [place.address], 'worker': ['localhost:2']})
  client = registration.Registration(
    cluster, _DEAD, 'localhost:2', chief=False, servers=[place.task]
  )
  client.start()
  _standstill._Notice('3', {}).post(mailbox)
  _standstill.answer('{"who_is_there": "3"}', mailbox, {_DEAD: 'localhost:2'})
  client.start()
  _standstill.say_where([place], {})
  client.stop()


def test_a_newcomer_finds_where_ps_have_moved(place, mailbox):
  _standstill.say_where([place], {_CHIEF: 'there:1'})
  assert _standstill.find([place]) == {_CHIEF: 'there:1'}
