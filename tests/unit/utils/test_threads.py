"""Processes with thousands of threads can wake one of them quickly."""

import ctypes
import sys

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
