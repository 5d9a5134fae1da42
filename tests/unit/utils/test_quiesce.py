"""Who would not stop is named."""

import pytest

from tfps import errors
from tfps._utils import quiesce_lock


def test_who_does_not_come_to_rest_is_named():
  gate = quiesce_lock.QuiesceLock()
  with (
    gate.entered('worker:2'),
    pytest.raises(
      errors.DeadlineError, match=r'After 0\.1 .* worker:2 is still'
    ),
    quiesce_lock.quiesced(gate, 0.1),
  ):
    pass
  with quiesce_lock.quiesced(gate, 0.1):
    assert not gate.num_inside


def test_no_last_cut_is_made_beside_others():
  gate, told = quiesce_lock.QuiesceLock(), []
  with gate:
    assert not quiesce_lock.quiesce_for_last_snapshot(gate, 0.1, told.append)
  assert quiesce_lock.quiesce_for_last_snapshot(gate, 0.1, told.append)
  assert told == [True, False, True]
