"""Who would not stop is named."""

import pytest

from tfps import _gate
from tfps import errors
from tfps.recovery import quiet


def test_who_does_not_come_to_rest_is_named():
  gate = _gate.Gate()
  with (
    gate.entered('worker:2'),
    pytest.raises(errors.DeadlineError, match=r'After 0\.1 .* worker:2 is not'),
    quiet.alone(gate, 0.1),
  ):
    pass
  with quiet.alone(gate, 0.1):
    assert not gate.num_inside


def test_no_last_cut_is_made_beside_others():
  gate, told = _gate.Gate(), []
  with gate:
    assert not quiet.close(gate, 0.1, told.append)
  assert quiet.close(gate, 0.1, told.append)
  assert told == [True, False, True]
