"""What is calibrated explains what was measured, and pages are written."""

import pytest

from benchmarks.network import calibration
from benchmarks.network import plan as benchmark
from benchmarks.pages import scaling
from tfps import plan

_MACHINE = calibration.Machine(
  step_secs=0.001,
  fabric_mbit_per_sec=6000.0,
  overhead=0.08,
  embedding_secs=0.002,
  codec_bytes_per_sec={'int8': 3e9},
  num_cpus=2,
)


def _predict(model, wire, machine, rate):
  one = benchmark.Configuration(model, wire, 1, 1, rate)
  return plan.predict(benchmark.job(one, machine)).secs_per_step


@pytest.mark.exhaustive
def test_a_machine_is_found_by_what_it_does():
  free = calibration.UNLIMITED_MBIT_PER_SEC
  measured = calibration.Measured(
    tiny=_MACHINE.step_secs,
    dense=_predict('dense', 'none', _MACHINE, free),
    dense_limited=_predict('dense', 'none', _MACHINE, 250.0),
    limited_mbit_per_sec=250.0,
    embedding=_predict('embedding', 'none', _MACHINE, free),
    by_codec={'int8': _predict('dense', 'int8', _MACHINE, free)},
  )
  found = calibration.calibrate(measured, _predict, 2)
  for model, wire, rate in (
    ('dense', 'none', 100.0),
    ('dense', 'int8', 1000.0),
    ('embedding', 'none', 400.0),
  ):
    expected = _predict(model, wire, _MACHINE, rate)
    secs = _predict(model, wire, found, rate)
    assert secs == pytest.approx(expected, rel=0.02)


def test_models_are_those_that_are_trained():
  for name in ('dense', 'embedding'):
    made = benchmark.model_of(name, _MACHINE)
    trained = benchmark.task.MODELS[name]
    assert made.num_bytes == trained.num_bytes
    assert len(made.variables) == trained.num_variables


def test_what_is_calibrated_is_not_compared():
  for one in benchmark._CONFIGURATIONS:
    assert one.num_workers * one.num_ps > 1


def test_a_page_shows_what_its_commands_print():
  page = (
    'x\n```console\n$ tfps plan --num_workers=1 --num_ps=1 --mbit_per_sec=1 '
    '--model_bytes=1K --compute_ms=1 --no-advice\nstale\n```\ny\n'
  )
  found = scaling.with_outputs(page)
  assert 'stale' not in found
  assert 'parameters            1 kB\n' in found
  assert scaling.with_outputs(found) == found
