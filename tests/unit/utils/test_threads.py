"""Threads that wait by thousands, and calls on several threads."""

import ctypes
import subprocess
import sys
import threading
import time

import pytest

from tfps._utils import threads

_PR_FUTEX_HASH, _PR_FUTEX_HASH_GET_SLOTS = 78, 2


@pytest.mark.skipif(sys.platform != 'linux', reason='of the Linux kernel')
def test_the_kernel_finds_a_thread_among_many():
  def num_slots():
    return ctypes.CDLL(None).prctl(
      _PR_FUTEX_HASH, _PR_FUTEX_HASH_GET_SLOTS, 0, 0, 0
    )

  if num_slots() == -1:
    pytest.skip('The kernel has one table for all processes.')
  threads.expect_many()
  assert num_slots() >= 4096


def test_all_are_called_so_many_at_once_and_have_their_order():
  inside, most = 0, 0
  lock = threading.Lock()

  def double(number):
    nonlocal inside, most
    with lock:
      inside += 1
      most = max(most, inside)
    time.sleep(0.001)
    with lock:
      inside -= 1
    return 2 * number

  found = threads.map_all('test', double, range(20), at_once=3)
  assert found == list(range(0, 40, 2))
  assert 1 <= most <= 3
  assert threads.map_all('test', double, [], at_once=3) == []


def test_an_error_is_raised_once_all_have_ended():
  ended = []

  def invert(number):
    if number:
      time.sleep(0.05)
    ended.append(1 / number)

  with pytest.raises(ZeroDivisionError):
    threads.map_all('test', invert, [0, 1, 2], at_once=3)
  assert sorted(ended) == [0.5, 1.0]


def test_calls_may_begin_while_the_interpreter_ends():
  program = (
    'import atexit\n'
    'from tfps._utils import threads\n'
    'atexit.register(\n'
    '  lambda: print(threads.map_all("test", abs, [-1, -2], at_once=2))\n'
    ')\n'
  )
  done = subprocess.run(
    [sys.executable, '-c', program], capture_output=True, text=True, timeout=60
  )
  assert done.stdout == '[1, 2]\n', done.stderr
