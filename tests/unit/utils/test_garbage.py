"""Tests for `_utils.garbage`."""

import gc
import threading

import pytest

from tfps._utils import garbage


@pytest.fixture(autouse=True)
def threshold():
  before = gc.get_threshold()
  yield gc.set_threshold
  gc.set_threshold(*before)


def test_the_threshold_is_high_until_the_last_thread_has_left(threshold):
  threshold(700, 9, 8)
  has_begun, may_end = threading.Event(), threading.Event()

  def stay():
    with garbage.looked_for_rarely():
      has_begun.set()
      assert may_end.wait(20)

  with garbage.looked_for_rarely():
    other = threading.Thread(target=stay)
    other.start()
    assert has_begun.wait(20)
    assert gc.get_threshold()[0] > 50_000
    assert gc.get_threshold()[1:] == (9, 8)
    assert gc.isenabled()
  with pytest.raises(ValueError), garbage.looked_for_rarely():
    raise ValueError
  assert gc.get_threshold()[0] > 50_000
  may_end.set()
  other.join()
  assert gc.get_threshold() == (700, 9, 8)


@pytest.mark.parametrize('number', [0, 1_000_000])
def test_who_wants_less_of_it_has_less(threshold, number):
  threshold(number, 10, 10)
  with garbage.looked_for_rarely():
    assert gc.get_threshold() == (number, 10, 10)
  assert gc.get_threshold() == (number, 10, 10)
