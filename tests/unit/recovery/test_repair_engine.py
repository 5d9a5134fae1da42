"""The engine of repairs decides as its table says, by a clock of the test's."""

import contextlib
import itertools

import pytest
import tensorflow as tf

from tfps import errors
from tfps.recovery import repair_engine

Decision = repair_engine.Decision

_TIMEOUT_SECS = 10.0
_THERE, _SILENT = {0: 1, 1: 2}, {0: None, 1: 2}
_LOST = tf.errors.UnavailableError(None, None, 'ps:0 is lost.')


class _Driver(repair_engine.Driver):
  """One that finds and restores what it is told, and notes what is called."""

  def __init__(self, finds, restores=(True,), occupied=None):
    self._finds, self._restores = iter(finds), iter(restores)
    self._occupied = occupied
    self.called = []

  def find(self, lost_secs):
    self.called.append(('find', round(lost_secs, 1)))
    return _give(next(self._finds))

  def describe(self, ps):
    return f'ps:{ps} at h:1'

  @contextlib.contextmanager
  def quiesced(self):
    if self._occupied:
      raise self._occupied
    self.called.append('close')
    yield
    self.called.append('open')

  def begin(self):
    self.called.append('begin')

  def restore(self, found):
    assert found == _THERE
    self.called.append('restore')
    return _give(next(self._restores))


class _Clock:
  def __init__(self, stops_at=float('inf')):
    self.now = 100.0
    self._stops_at = 100.0 + stops_at

  def wait(self, secs):
    self.now += secs
    return self.now >= self._stops_at


def _give(result):
  if isinstance(result, Exception):
    raise result
  return result


def _run(driver, clock=None, deadline=None):
  clock = clock or _Clock()
  engine = repair_engine.RepairEngine(
    driver, _TIMEOUT_SECS, wait=clock.wait, clock=lambda: clock.now
  )
  engine.begin(deadline)
  return engine, engine.run()


def _names(driver):
  return [
    each[0] if isinstance(each, tuple) else each for each in driver.called
  ]


def _for_ever(*results):
  yield from results[:-1]
  while True:
    yield results[-1]


def test_nothing_is_quiesced_until_all_ps_answer():
  driver = _Driver([_SILENT, _LOST, _THERE, _THERE])
  engine, decision = _run(driver)
  assert decision is Decision.RESUME
  assert engine.error is None
  assert _names(driver) == (
    ['find'] * 3 + ['close', 'begin', 'find', 'restore', 'open']
  )


def test_a_ps_that_is_lost_meanwhile_is_waited_for_while_all_is_quiet():
  driver = _Driver([_THERE, _SILENT, _THERE, _THERE], [_LOST, True])
  _, decision = _run(driver)
  assert decision is Decision.RESUME
  assert _names(driver) == [
    *('find', 'close', 'begin', 'find', 'find', 'restore'),
    *('find', 'restore', 'open'),
  ]


def test_a_caller_that_has_quiesced_looks_once_and_quiesces_nothing():
  driver = _Driver([_SILENT, _THERE])
  clock = _Clock()
  engine = repair_engine.RepairEngine(
    driver, _TIMEOUT_SECS, wait=clock.wait, clock=lambda: clock.now
  )
  engine.begin()
  assert engine.run_quiesced() is Decision.RESUME
  assert _names(driver) == ['find', 'find', 'restore']


def test_looks_are_first_frequent_and_count_from_the_loss():
  driver = _Driver(_for_ever(_SILENT))
  _run(driver)
  times = [secs for _, secs in driver.called]
  gaps = [b - a for a, b in itertools.pairwise(times)]
  assert times[0] == 0
  assert gaps[0] < gaps[-1]
  assert times[-1] >= _TIMEOUT_SECS


@pytest.mark.parametrize(
  ('finds', 'restores', 'said'),
  [
    ((_SILENT,), (), 'ps:0 at h:1 was lost and has not been restarted within'),
    ((_THERE,), (False,), 'The chief has not restored the variables within 10'),
    ((_THERE,), (_LOST,), 'not be restored within 10 seconds: ps:0 is lost.'),
    ((_THERE,), (errors.DeadlineError('Late.'),), '^Late.$'),
    # The last look tells why.
    ((_LOST, _THERE, _SILENT), (), 'ps:0 at h:1 was lost'),
  ],
)
def test_it_gives_up_and_says_for_whom_it_waited(finds, restores, said):
  driver = _Driver(_for_ever(*finds), _for_ever(*restores or (True,)))
  engine, decision = _run(driver)
  assert decision is Decision.GIVE_UP
  with pytest.raises(errors.DeadlineError, match=said):
    raise engine.error


def test_a_deadline_may_be_that_of_several_repairs():
  driver = _Driver(_for_ever(_SILENT))
  clock = _Clock()
  _, decision = _run(driver, clock, deadline=102.0)
  assert decision is Decision.GIVE_UP
  assert clock.now < 104.0


def test_who_does_not_stop_executing_is_named():
  driver = _Driver([_THERE], occupied=errors.DeadlineError('worker:1 executes'))
  engine, decision = _run(driver)
  assert decision is Decision.GIVE_UP
  assert 'worker:1' in str(engine.error)
  assert _names(driver) == ['find']


@pytest.mark.parametrize('finds', [(_SILENT,), (_THERE, _SILENT)])
def test_it_ends_without_a_decision_when_it_is_to_stop(finds):
  driver = _Driver(_for_ever(*finds))
  engine, decision = _run(driver, _Clock(stops_at=1.0))
  assert decision is Decision.WAIT
  assert engine.error is None


def test_other_errors_end_a_repair_at_once():
  driver = _Driver([_THERE, _THERE], [errors.ReplacedError('Another one.')])
  with pytest.raises(errors.ReplacedError):
    _run(driver)
