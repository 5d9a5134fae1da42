"""Which errors of a client are taken for the loss of a ps."""

from types import SimpleNamespace

import pytest
import tensorflow as tf

from tfps.recovery import client_repair


def _repair(found):
  """That of a client which has used ps of the incarnations 1 and 2."""
  seen = iter([{0: 1, 1: 2}, found])
  address_book = SimpleNamespace(
    incarnations=lambda: next(seen), addresses={'ps:0': 'h:1', 'ps:1': 'h:2'}
  )
  copies = SimpleNamespace(
    address_book=address_book,
    snapshotter=None,
    fence=None,
    recovery=SimpleNamespace(timeout_secs=60),
  )
  return client_repair.ClientRepair(copies, None, None)


@pytest.mark.parametrize(
  ('error', 'text', 'is_due'),
  [
    (tf.errors.UnavailableError, 'no connection to /job:ps/task:1', True),
    # Another part of the call has failed, by a loss that was repaired since.
    (tf.errors.CancelledError, 'CANCELLED, from /job:ps/task:1', True),
    (tf.errors.CancelledError, 'RecvFromRemoteAsync is cancelled.', True),
    (tf.errors.CancelledError, 'The dataset is closed.', False),
    (tf.errors.OutOfRangeError, 'End of /job:ps', False),
  ],
)
def test_errors_while_all_ps_are_as_before(error, text, is_due):
  repair = _repair({0: 1, 1: 2})
  assert repair.is_due(error(None, None, text)) == is_due


def test_any_error_after_a_restart_is_due_to_it():
  error = tf.errors.OutOfRangeError(None, None, 'End.')
  assert _repair({0: 1, 1: 3}).is_due(error)
