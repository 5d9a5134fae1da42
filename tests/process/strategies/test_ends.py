"""The end of a program shows the program's own error, and nothing else."""

import itertools
import pathlib
import sys

import pytest

from tfps import testing

_PROGRAM = pathlib.Path(__file__).parents[2] / 'programs/ends.py'
_STATUS = {'return': 0, 'raise': 1, 'exit': 3}
_CASES = [
  (name, feed, how, when)
  for name, feed, how, when in itertools.product(
    ('coordinator', 'between graphs', 'hybrid'),
    ('fit', 'queue', 'train'),
    _STATUS,
    ('within', 'after'),
  )
  if (how, when) != ('return', 'within')
]
# What this package says of how a program ends.
_OURS = 'ends with an error and does not tell its servers that it is done.'


@pytest.mark.exhaustive
@pytest.mark.parametrize(('name', 'feed', 'how', 'when'), _CASES)
def test_nothing_but_the_error_of_the_program_is_shown(
  monkeypatch, name, feed, how, when
):
  monkeypatch.delenv('TF_CPP_MIN_LOG_LEVEL', raising=False)
  command = [sys.executable, str(_PROGRAM), name, feed, how, when]
  job = 'chief' if name == 'coordinator' else 'worker'
  # Not forked: it is the end of an interpreter that counts.
  with testing.ProcessCluster(1, 1, commands={job: command}) as cluster:
    status = cluster.wait(job, 0, timeout_secs=120)
    log = cluster.log(job, 0)
    assert status == _STATUS[how], log[-3000:]
    *_, shown = log.rpartition('The end.\n')
    if how == 'raise':
      shown, ours = _without_traceback(shown)
      assert ours.endswith(_OURS)
    assert shown == ''
    if how == 'return':
      assert cluster.wait('ps', 0, timeout_secs=60) == 0


def _without_traceback(shown):
  """What comes before a traceback, and the last line after it."""
  before, traceback, rest = shown.partition('Traceback (most recent call')
  assert traceback
  error, told, after = rest.partition('ValueError: An error of the program.\n')
  assert told
  assert 'Traceback' not in error + after
  *others, ours = after.splitlines()
  return before + ''.join(others), ours
