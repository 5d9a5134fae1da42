import pytest

import tfps
from tfps.cluster.spec import Task
from tfps.server import mailbox as mailbox_lib
from tfps.server import messages
from tfps.server import registration

_PS = Task('ps', 0)


@pytest.fixture
def mailbox(ps_server, mailbox):
  known = tfps.Cluster({'ps': [ps_server.address], 'worker': {}}, _PS)
  mailbox.post(known.tf_config())
  return mailbox


def test_messages_are_taken_once_and_in_order(ps_server, mailbox):
  with mailbox_lib.Mailbox(ps_server.address, timeout_secs=30) as other:
    other.put('one')
    mailbox.put('two')
  assert mailbox.take() == ['one', 'two']
  assert mailbox.take() == []


def test_a_notice_is_kept_and_replaced(ps_server, mailbox):
  mailbox.post('first')
  mailbox.post('second')
  with mailbox_lib.Mailbox(ps_server.address, timeout_secs=30) as other:
    assert other.read() == 'second'


def _presence(
  address: str, *, workers: tuple[str, ...] = ('localhost:2',)
) -> registration.Registration:
  cluster = tfps.Cluster({'ps': [address], 'worker': workers})
  return registration.Registration(
    cluster, Task('worker', 0), 'localhost:2', chief=True, servers=[_PS]
  )


def _said(mailbox: mailbox_lib.Mailbox) -> list[bool]:
  """Which of the messages say done."""
  said = [messages.parse(text) for text in mailbox.take()]
  return [isinstance(message, messages.Done) for message in said]


@pytest.mark.quick
def test_hello_is_said_and_done_once(ps_server, mailbox):
  client = _presence(ps_server.address)
  client.start()
  client.stop()
  client.stop()
  assert _said(mailbox) == [False, True]


def test_a_program_that_fails_does_not_say_done(ps_server, mailbox):
  with pytest.raises(KeyError), _presence(ps_server.address):
    raise KeyError
  assert _said(mailbox) == [False]


def test_another_idea_of_the_cluster_is_told(ps_server, mailbox):
  workers = {0: 'localhost:2', 1: 'localhost:3'}
  known = tfps.Cluster({'ps': [ps_server.address], 'worker': workers}, _PS)
  mailbox.post(known.tf_config())
  with pytest.raises(
    tfps.ClusterMismatchError, match='worker:0 and ps:0 disagree on worker:1'
  ):
    _presence(ps_server.address, workers=('localhost:2', 'localhost:4')).start()
  assert _said(mailbox) == []


def test_a_server_that_is_about_to_end_is_no_server(ps_server, mailbox):
  mailbox.post(registration.ENDING)
  with pytest.raises(tfps.UnreachableError, match='ps:0 ends: its training is'):
    _presence(ps_server.address).start()


def test_a_server_that_may_not_join_is_still_where_it_was(ps_server, mailbox):
  client = _presence(ps_server.address)
  with pytest.raises(tfps.UnreachableError, match='ps:0 at localhost:1 is'):
    client.check(_PS, 'localhost:1')
  client.start()
  client.stop()
  assert _said(mailbox) == [False, True]
