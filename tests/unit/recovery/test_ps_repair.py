"""Which failures are tried again while all ps are alive."""

import threading

import pytest
import tensorflow as tf

from tfps._utils import quiesce_lock
from tfps.recovery import ps_repair


@pytest.mark.parametrize(
  ('failure', 'is_tried_again'),
  [
    (tf.errors.CancelledError, True),
    (tf.errors.InvalidArgumentError, False),
  ],
)
def test_a_cancelled_transfer_is_tried_again(failure, is_tried_again):
  repairs = _repairs()
  text = 'RecvFromRemoteAsync is cancelled.\n\t [[{{node stack/_30}}]]'
  assert repairs.can_retry(failure(None, None, text), 0) == is_tried_again


def test_other_cancellations_are_not_tried_again():
  failure = tf.errors.CancelledError(None, None, 'The dataset is closed.')
  assert not _repairs().can_retry(failure, 0)


def test_a_cancelled_transfer_is_not_tried_again_for_ever():
  repairs = _repairs(timeout_secs=-1)
  text = 'RecvFromRemoteAsync is cancelled.'
  assert not repairs.can_retry(tf.errors.CancelledError(None, None, text), 0)


def _repairs(timeout_secs=60):
  incarnations = {('ps', 0): 1, ('ps', 1): 2}
  repairs = ps_repair.PsRepairs(
    quiesce_lock.QuiesceLock(),
    lambda: incarnations,
    condition=threading.Condition(),
    ask=lambda: None,
    update=lambda found: None,
    stopping=threading.Event(),
    replaced=lambda: None,
    cancel=lambda: None,
  )
  repairs.repair_with(object(), ps_repair.of('ps', incarnations), timeout_secs)
  return repairs
