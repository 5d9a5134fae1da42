"""Settings of `tfps.Recovery`: what is refused, and defaults."""

import math
import pathlib

import numpy as np
import pytest

import tfps


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ({'directory': ''}, 'directory is empty'),
    (
      {'directory': 'x', 'replicas': 1, 'replicate_every_secs': 0},
      'secs=0 must be positive',
    ),
    (
      {'directory': 'x', 'replicate_every_secs': 1.0},
      'replicate_every_secs=1.0 needs replicas=1',
    ),
    *(
      ({'directory': 'x', 'max_to_keep': n}, f'max_to_keep={n} must be a whole')
      for n in (0, -1, 1.5, 2.0, math.inf, None, True)
    ),
    *(
      ({'directory': 'x', name: value}, f'{name}={value} must be')
      for name in ('every_secs', 'timeout_secs')
      for value in (0, -1, math.nan, None)
    ),
    *(
      ({'directory': 'x', 'replicas': n}, f'replicas={n} must be 0 or 1')
      for n in (-1, 2, None)
    ),
    *(
      ({'directory': 'x', 'written_by': w}, 'written_by=')
      for w in ('worker', None)
    ),
  ],
)
def test_wrong_settings_are_refused(arguments, message):
  with pytest.raises(ValueError, match=message):
    tfps.Recovery(**arguments)


def test_numbers_may_be_those_of_numpy():
  recovery = tfps.Recovery(
    'x', max_to_keep=np.int64(3), every_secs=np.float32(1.5)
  )
  assert recovery.max_to_keep == 3


def test_a_directory_may_be_given_as_a_path():
  assert tfps.Recovery(pathlib.Path('x')).every_secs == 60


@pytest.mark.parametrize(
  ('arguments', 'secs'),
  [
    ({}, 60),
    ({'replicas': 1}, 0.1),
    ({'replicas': 1, 'replicate_every_secs': 1}, 0.1),
    ({'replicas': 1, 'take_over_secs': 10}, 10),
    ({'take_over_secs': math.inf}, math.inf),
  ],
)
def test_who_has_replicas_does_not_wait_for_a_restart(arguments, secs):
  recovery = tfps.Recovery('x', **arguments)
  assert recovery.waits_for_restart_secs == secs
  assert recovery.moves_ps == (secs < math.inf)


def test_no_ps_takes_over_within_an_enclosure(monkeypatch):
  monkeypatch.setenv('TFPS_ENCLOSED', '1')
  assert not tfps.Recovery('x').moves_ps
  assert not tfps.Recovery('x', replicas=1).moves_ps
  assert not tfps.Recovery('x', take_over_secs=math.inf).moves_ps
  with pytest.raises(ValueError, match='take_over_secs=5 has another ps serve'):
    tfps.Recovery('x', take_over_secs=5)
