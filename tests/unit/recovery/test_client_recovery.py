"""How long a client waits for lost ps, by a clock of the test's."""

from types import SimpleNamespace
from unittest import mock

import pytest
import tensorflow as tf

from tfps._utils import deadlines
from tfps.recovery import client_recovery

_TIMEOUT_SECS = 100.0
_LOST = tf.errors.UnavailableError(None, None, 'lost /job:ps/task:0')


class _Clock:
  now = 1000.0

  def monotonic(self):
    return self.now


class _Repair:
  """Takes some time, and notes how much it was given."""

  registry = SimpleNamespace(has_changed=lambda found: False)

  def __init__(self, clock, secs):
    self._clock, self._secs = clock, secs
    self.given = []

  def is_due(self, error):
    return error is _LOST

  def check(self):
    pass

  def repair(self, deadline):
    self.given.append(deadline - self._clock.now)
    self._clock.now += self._secs


@pytest.fixture
def clock():
  clock = _Clock()
  with (
    mock.patch.object(client_recovery, 'time', clock),
    mock.patch.object(deadlines, 'time', clock),
  ):
    yield clock


@pytest.fixture
def recovery():
  copies = SimpleNamespace(
    address_book=SimpleNamespace(
      incarnations=lambda: {0: 1}, addresses={}, pop_moves=lambda: []
    ),
    cover=lambda incarnations: None,
    fence=None,
    notes=SimpleNamespace(
      close=lambda: None,
      contradict=lambda known: False,
      are_of_others=lambda known: False,
    ),
    recovery=SimpleNamespace(timeout_secs=_TIMEOUT_SECS, on_event=None),
    snapshotter=None,
  )
  recovery = client_recovery.ClientRecovery(copies, greet=lambda hosted: None)
  yield recovery
  recovery.stop()


def _survive(recovery, clock, runs, repair_secs):
  """Calls what is lost after running for some seconds, again and again.

  Returns:
    How many seconds each repair was given.
  """
  recovery._repair = repair = _Repair(clock, repair_secs)
  recovery._repair.registry.known = {0: 1}
  left = iter(runs)

  def run():
    for secs in left:
      clock.now += secs
      raise _LOST
    return 'done'

  assert recovery.surviving(run) == 'done'
  return repair.given


@pytest.mark.parametrize(
  ('runs', 'given'),
  [
    ([1], [100]),
    ([1, 5], [100, 85]),
    ([1, 100], [100, 100]),
    ([1, 500, 3, 500], [100, 100, 87, 100]),
  ],
)
def test_a_loss_long_after_another_one_gets_a_time_of_its_own(
  recovery, clock, runs, given
):
  assert _survive(recovery, clock, runs, repair_secs=10) == given


def test_losses_one_soon_after_another_end_it(recovery, clock):
  began = clock.now
  with pytest.raises(tf.errors.UnavailableError):
    _survive(recovery, clock, [2] * 1000, repair_secs=1)
  assert clock.now - began < _TIMEOUT_SECS + 10
