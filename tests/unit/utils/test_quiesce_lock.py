"""Some inside, or one alone."""

import threading

import pytest

from tests.support import waiting
from tfps._utils import quiesce_lock


def in_thread(function):
  thread = threading.Thread(target=function, daemon=True)
  thread.start()
  return thread


def test_several_are_inside_at_once():
  gate = quiesce_lock.QuiesceLock()
  with gate, gate:
    assert gate.num_entries == 2


def test_who_closes_waits_for_those_inside():
  gate, seen = quiesce_lock.QuiesceLock(), []
  leave = threading.Event()
  inside = threading.Event()

  def enter():
    with gate:
      inside.set()
      leave.wait()
      seen.append('left')

  def close():
    with gate.closed():
      seen.append('closed')

  entering = in_thread(enter)
  inside.wait()
  closing = in_thread(close)
  closing.join(0.1)
  assert not seen
  leave.set()
  closing.join(10)
  entering.join(10)
  assert seen == ['left', 'closed']


def test_who_comes_waits_while_it_is_closed():
  gate, entered = quiesce_lock.QuiesceLock(), threading.Event()

  def enter():
    with gate:
      entered.set()

  with gate.closed():
    in_thread(enter)
    assert not entered.wait(0.1)
  waiting.until(entered.is_set)


def test_who_closes_in_vain_leaves_it_open():
  gate, told = quiesce_lock.QuiesceLock(), []
  with gate:
    with (
      pytest.raises(TimeoutError),
      gate.closed(told.append, within_secs=0.1),
    ):
      pass
    with gate:
      assert gate.num_inside == 2
  assert told == [True, False]


def test_who_is_waited_for_in_vain_is_named():
  gate = quiesce_lock.QuiesceLock()
  with (
    gate.entered('worker:1'),
    gate,
    gate,
    pytest.raises(
      quiesce_lock.OccupiedError, match='MainThread, worker:1'
    ) as info,
    gate.closed(within_secs=0.0),
  ):
    pass
  assert info.value.names == ['MainThread', 'worker:1']
  assert not gate.num_inside


def test_who_stays_inside_is_hurried():
  gate, hurried = quiesce_lock.QuiesceLock(), []
  leave = threading.Event()

  def enter():
    with gate.entered('worker:0'):
      leave.wait()

  def hurry(names):
    hurried.append((names, gate.num_inside))
    leave.set()

  entering = in_thread(enter)
  waiting.until(lambda: gate.num_inside)
  with gate.closed(within_secs=60, hurry=quiesce_lock.Hurry(0.05, hurry)):
    assert hurried[0] == (['worker:0'], 1)
  entering.join(10)


def test_who_stays_inside_is_hurried_while_another_thread_waits_for_it():
  gate, leave = quiesce_lock.QuiesceLock(), threading.Event()
  turns = []

  def enter():
    with gate:
      leave.wait()

  def close():
    with gate.closed():
      turns.append('other')

  in_thread(enter)
  waiting.until(lambda: gate.num_inside)
  in_thread(close)
  waiting.until(lambda: gate.is_closed)
  hurry = quiesce_lock.Hurry(0.05, lambda names: leave.set())
  with gate.closed(within_secs=60, hurry=hurry):
    assert turns == ['other']


def test_nobody_is_hurried_who_leaves_by_himself():
  gate, hurried = quiesce_lock.QuiesceLock(), []
  with gate.closed(hurry=quiesce_lock.Hurry(0.0, hurried.append)):
    pass
  assert not hurried


def test_who_closes_while_another_is_alone_keeps_to_a_deadline():
  gate = quiesce_lock.QuiesceLock()

  def close():
    with gate.closed(within_secs=0.1):
      pass

  with (
    gate.closed(),
    pytest.raises(quiesce_lock.OccupiedError, match='MainThread'),
  ):
    close()
  with gate.closed(within_secs=0.1):  # nobody is alone any more
    pass


def test_two_who_close_take_turns():
  gate, second = quiesce_lock.QuiesceLock(), threading.Event()

  def close():
    with gate.closed():
      second.set()

  with gate.closed():
    in_thread(close)
    assert not second.wait(0.1)
  waiting.until(second.is_set)
