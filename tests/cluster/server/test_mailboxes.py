"""Connections to mailboxes that are kept open."""

import pytest

from tfps.server import mailbox as mailbox_lib


@pytest.fixture
def mailboxes():
  found = mailbox_lib.Mailboxes()
  yield found
  found.abandon()


def _at(mailboxes, ps_server, incarnation):
  return mailboxes.at(ps_server.address, incarnation, timeout_secs=30)


def test_a_connection_serves_one_life_of_its_server(
  mailboxes, ps_server, mailbox
):
  with _at(mailboxes, ps_server, 1) as first:
    first.put('a')
  with _at(mailboxes, ps_server, 1) as second:
    second.put('b')
  assert second is first
  with _at(mailboxes, ps_server, 2) as third:
    third.put('c')
  assert third is not first
  assert mailbox.take() == ['a', 'b', 'c']


def test_a_connection_in_use_is_not_shared(mailboxes, ps_server, mailbox):
  with (
    _at(mailboxes, ps_server, 1) as first,
    _at(mailboxes, ps_server, 1) as second,
  ):
    first.put('a')
    second.put('b')
  assert second is not first
  assert mailbox.take() == ['a', 'b']


def test_after_an_error_there_is_a_new_connection(
  mailboxes, ps_server, mailbox
):
  with pytest.raises(KeyError), _at(mailboxes, ps_server, 1) as first:
    raise KeyError
  with _at(mailboxes, ps_server, 1) as second:
    second.put('a')
  assert second is not first
  assert mailbox.take() == ['a']


def test_what_is_closed_is_opened_anew(mailboxes, ps_server, mailbox):
  with _at(mailboxes, ps_server, 1) as first:
    first.put('a')
  mailboxes.close()
  with pytest.raises(RuntimeError, match='closed Session'):
    first.put('b')
  with _at(mailboxes, ps_server, 1) as second:
    second.put('c')
  assert mailbox.take() == ['a', 'c']


def test_a_notice_is_read_from_when_it_is_there(ps_server, mailbox):
  with mailbox_lib.Mailbox(ps_server.address, timeout_secs=30) as other:
    assert mailbox.read('new') is None
    for notice in ('a', 'b'):
      other.post(notice, 'new')
      assert mailbox.read('new') == notice
