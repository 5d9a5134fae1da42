"""Tests of `tfps._utils.timeouts`."""

import dataclasses
import subprocess
import sys

import pytest

from tfps._utils import timeouts


def test_all_are_positive():
  assert all(secs > 0 for secs in _fields(timeouts.Timeouts()).values())


def test_a_factor_scales_all():
  default, scaled = timeouts.Timeouts(), timeouts.Timeouts().scaled(2)
  assert _fields(scaled) == {
    name: 2 * secs for name, secs in _fields(default).items()
  }


def test_periods_follow_polls_and_fit_into_deadlines():
  default = timeouts.Timeouts()
  assert default.repair_min_poll_secs < default.repair_poll_secs
  assert default.poll_secs < default.probe_every_secs
  assert default.stuck_every_secs < default.look_memory_secs
  assert default.step_quiet_secs < default.step_settle_secs


def test_without_the_variable_defaults_are_used():
  assert timeouts.Timeouts.from_env({}) == timeouts.Timeouts()


def test_the_variable_scales():
  found = timeouts.Timeouts.from_env({'TFPS_TIMEOUTS_SCALE': '3'})
  assert found == timeouts.Timeouts().scaled(3)


@pytest.mark.parametrize('text', ['', 'fast', '0', '-1', 'nan', 'inf'])
def test_a_bad_value_is_named(text):
  with pytest.raises(ValueError, match=f"TFPS_TIMEOUTS_SCALE: '{text}' is not"):
    timeouts.Timeouts.from_env({'TFPS_TIMEOUTS_SCALE': text})


def test_a_process_reads_its_environment_without_tensorflow():
  program = (
    'import sys; from tfps._utils import timeouts; '
    'print(timeouts.current().command_secs, "tensorflow" in sys.modules)'
  )
  done = subprocess.run(
    [sys.executable, '-c', program],
    env={'TFPS_TIMEOUTS_SCALE': '2', 'PYTHONPATH': ':'.join(sys.path)},
    stdout=subprocess.PIPE,
    text=True,
    check=True,
  )
  assert done.stdout.split() == ['60.0', 'False']


def test_it_is_the_same_for_the_whole_process():
  assert timeouts.current() is timeouts.current()


def _fields(times: timeouts.Timeouts) -> dict[str, float]:
  return dataclasses.asdict(times)
