"""Writers of metrics: log, JSON lines, TensorBoard."""

import json
import sys

import pytest

from tests.support import waiting
from tfps import monitor
from tfps.monitor import families
from tfps.monitor import rates as rates_lib
from tfps.monitor import registry as registry_lib

_BUCKETS = families.Buckets.of_numbers([5, 0, 2])


def _samples(steps):
  return [
    families.Sample(families.GLOBAL_STEP, 40, 'chief:0'),
    families.Sample(families.LOOP, 2.0, 'chief:0', ('save',)),
    families.Sample(families.STALENESS, _BUCKETS, 'chief:0'),
    families.Sample(families.STEPS, steps, 'worker:1'),
  ]


@pytest.fixture
def readings():
  rates = rates_lib.Rates()
  return [
    rates.reading(_samples(10), 100.0),
    rates.reading(_samples(40), 110.0),
  ]


def test_rates_are_those_since_the_reading_before(readings):
  first, second = readings
  assert first.rates == {}
  assert second.rates == {
    ('tfps_steps_total', 'worker:1', ()): 3.0,
    ('tfps_loop_seconds_total', 'chief:0', ('save',)): 0.0,
  }


def test_a_counter_that_begins_anew_has_no_negative_rate():
  rates = rates_lib.Rates()
  rates.reading(_samples(40), 100.0)
  reading = rates.reading(_samples(10), 110.0)
  assert reading.rates['tfps_steps_total', 'worker:1', ()] == 0.0


def test_a_counter_that_was_missing_has_its_rate_since_it_was_read():
  rates = rates_lib.Rates()
  key = ('tfps_steps_total', 'worker:1', ())
  samples = [[], _samples(1000), [], [], _samples(1060), _samples(1090)]
  found = [
    rates.reading(each, 100.0 + 10 * i).rates.get(key)
    for i, each in enumerate(samples)
  ]
  assert found == [None, None, None, None, 2.0, 3.0]


def test_json_lines_have_values_rates_and_histograms(readings, tmp_path):
  path = tmp_path / 'new' / 'metrics.jsonl'
  for reading in readings:
    monitor.JsonLines(path).write(reading)
  lines = [json.loads(line) for line in path.read_text().splitlines()]
  assert [line['time'] for line in lines] == [100.0, 110.0]
  found = {each['name']: each for each in lines[1]['metrics']}
  assert found['tfps_steps_total'] == {
    'name': 'tfps_steps_total',
    'labels': {'job': 'worker', 'task': 'worker:1'},
    'value': 40,
    'rate': 3.0,
  }
  assert found['tfps_staleness_updates'] == {
    'name': 'tfps_staleness_updates',
    'labels': {'job': 'chief', 'task': 'chief:0'},
    'buckets': [[0.0, 5], [1.0, 0], [None, 2]],
    'sum': 4.0,
  }
  assert found['tfps_loop_seconds_total']['labels']['part'] == 'save'


def test_a_log_line_has_rates_and_gauges(readings, caplog):
  caplog.set_level('INFO', logger='absl')
  monitor.Log().write(readings[1])
  (record,) = caplog.records
  assert record.getMessage() == (
    'metrics: tfps_global_step/chief:0 40, tfps_steps_total/worker:1 3/s'
  )


def test_tensorboard_gets_scalars_and_histograms(readings, tmp_path):
  from tensorboard.backend.event_processing import event_accumulator

  writer = monitor.TensorBoard(tmp_path)
  for reading in readings:
    writer.write(reading)
  events = event_accumulator.EventAccumulator(
    str(tmp_path), size_guidance={event_accumulator.TENSORS: 0}
  )
  events.Reload()
  (rate,) = events.Scalars('tfps/steps_total/worker:1_per_second')
  assert (rate.step, rate.wall_time, rate.value) == (40, 110.0, 3.0)
  assert [s.value for s in events.Scalars('tfps/global_step/chief:0')] == [
    40.0,
    40.0,
  ]
  histogram = events.Tensors('tfps/staleness_updates/chief:0')[-1]
  assert histogram.tensor_proto.tensor_shape.dim[1].size == 3
  metadata = events.SummaryMetadata('tfps/staleness_updates/chief:0')
  assert metadata.plugin_data.plugin_name == 'histograms'


def test_a_missing_package_is_named_with_its_extra(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, 'tensorboard.compat.proto', None)
  with pytest.raises(ImportError, match=r'pip install "tfps\[tensorboard\]"'):
    monitor.TensorBoard(tmp_path)


def test_a_periodic_writer_writes_at_its_end_too():
  written = []

  class Keep:
    def write(self, reading):
      written.append(reading)

  with monitor.PeriodicWriter([Keep()], every_secs=600):
    registry_lib.of_process().add(families.EVALUATIONS, 3)
  (reading,) = written
  names = [sample.family.name for sample in reading.samples]
  assert 'tfps_evaluations_total' in names


def test_a_full_disk_stops_nothing(caplog, tmp_path):
  (tmp_path / 'file').touch()
  path = tmp_path / 'file' / 'metrics.jsonl'
  writer = monitor.PeriodicWriter([monitor.JsonLines(path)], every_secs=600)
  writer.write()
  (record,) = caplog.records
  assert str(path) in record.getMessage()
  assert record.levelname == 'ERROR'


def test_an_error_of_a_writer_stops_neither_training_nor_others(caplog):
  written = []

  class Fail:
    def write(self, reading):
      raise RuntimeError('service unavailable')

  class Keep:
    def write(self, reading):
      written.append(reading)

  with monitor.PeriodicWriter([Fail(), Keep()], every_secs=0.01):
    waiting.until(lambda: len(written) > 2)
  assert len(written) > 3
  assert 'service unavailable' in caplog.text


@pytest.mark.parametrize('secs', [0, -1, float('nan')])
def test_a_period_is_above_zero(secs):
  with pytest.raises(ValueError, match='every_secs'):
    monitor.PeriodicWriter([], every_secs=secs)
