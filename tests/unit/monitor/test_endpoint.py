"""The endpoint that Prometheus scrapes, and its port."""

import socket
import urllib.request

from absl import flags
import portpicker
from prometheus_client import parser
import pytest

import tfps
from tfps import monitor
from tfps.cluster import spec as spec_lib
from tfps.monitor import endpoint as endpoint_lib
from tfps.monitor import families
from tfps.monitor import prometheus
from tfps.monitor import registry as registry_lib


@pytest.fixture(autouse=True)
def registry(monkeypatch):
  registry = registry_lib.Registry()
  monkeypatch.setattr(registry_lib, 'of_process', lambda: registry)
  endpoint_lib._serve_once.cache_clear()
  yield registry
  endpoint_lib._serve_once.cache_clear()


@pytest.fixture
def port():
  return portpicker.pick_unused_port()


def _flags(*words):
  values = flags.FlagValues()
  tfps.define_flags(values)
  values(['program', *words])
  return values


def _scrape(address):
  with urllib.request.urlopen(f'http://{address}/metrics', timeout=10) as page:
    return page.read().decode()


def _begin(task='ps:1', *, env=None, words=()):
  endpoint_lib.begin(
    spec_lib.Task.parse(task),
    is_chief=False,
    env=env or {},
    flag_values=_flags(*words),
  )


def test_a_page_has_counters_gauges_and_histograms(registry):
  registry.task = spec_lib.Task('chief', 0)
  registry.add(families.STEPS, 20, task='worker:1')
  registry.add(families.TRANSFERRED, 8, 'ps:0', 'pull')
  registry.set(families.STEP_METRIC, 0.25, 'lo"s\\s\n')
  buckets = families.Buckets.of_numbers([5, 0, 2])
  registry.offer(
    'updates',
    registry,
    lambda _: [families.Sample(families.STALENESS, buckets)],
  )
  endpoint = monitor.serve(0)
  try:
    text = _scrape(endpoint.address)
  finally:
    endpoint.stop()
  found = {
    (sample.name, *sorted(sample.labels.items())): sample.value
    for family in parser.text_string_to_metric_families(text)
    for sample in family.samples
  }
  chief = (('job', 'chief'), ('task', 'chief:0'))
  worker = (('job', 'worker'), ('task', 'worker:1'))
  pull = (('direction', 'pull'), chief[0], ('ps', 'ps:0'), chief[1])
  named = (chief[0], ('name', 'lo"s\\s\n'), chief[1])
  assert found[('tfps_steps_total', *worker)] == 20
  assert found[('tfps_transferred_bytes_total', *pull)] == 8
  assert found[('tfps_step_metric', *named)] == 0.25
  for end, number in (('0.0', 5), ('+Inf', 7)):
    labels = (chief[0], ('le', end), chief[1])
    assert found[('tfps_staleness_updates_bucket', *labels)] == number
  assert found[('tfps_staleness_updates_count', *chief)] == 7
  assert found[('tfps_staleness_updates_sum', *chief)] == 4
  types = {f.name: f.type for f in parser.text_string_to_metric_families(text)}
  assert types['tfps_steps'] == 'counter'
  assert types['tfps_step_metric'] == 'gauge'
  assert types['tfps_staleness_updates'] == 'histogram'


def test_it_listens_on_loopback_unless_told_otherwise(port):
  endpoint = monitor.serve(port)
  assert endpoint.address == f'127.0.0.1:{port}'
  endpoint.stop()
  endpoint = monitor.serve(f'127.0.0.2:{port}')
  try:
    assert _scrape(f'127.0.0.2:{port}')
    with pytest.raises(OSError):
      _scrape(f'127.0.0.1:{port}')
  finally:
    endpoint.stop()


def test_a_busy_port_is_an_error_that_stops_nothing(port, caplog):
  with socket.create_server(('127.0.0.1', port)):
    _begin(env={'TFPS_METRICS_PORT': str(port)})
  (record,) = caplog.records
  assert record.levelname == 'ERROR'
  assert record.getMessage() == (
    f'TFPS_METRICS_PORT: metrics cannot be served at 127.0.0.1:{port}: '
    'Address already in use. Training goes on without; end what uses the '
    'port, or choose another one.'
  )


def test_without_a_setting_nothing_listens_and_nothing_is_counted(registry):
  _begin()
  assert not registry.is_read
  assert str(registry.task) == 'ps:1'
  assert endpoint_lib._serve_once.cache_info().misses == 0


def test_the_flag_wins_over_the_environment(registry, port):
  other = portpicker.pick_unused_port()
  _begin(
    env={'TFPS_METRICS_PORT': str(other)}, words=[f'--metrics_port={port}']
  )
  assert registry.is_read
  assert 'task="ps:1"' in _scrape(f'127.0.0.1:{port}')
  with pytest.raises(OSError):
    _scrape(f'127.0.0.1:{other}')


def test_a_second_strategy_keeps_the_endpoint(port, caplog):
  for task in ('chief:0', 'worker:0'):
    _begin(task, env={'TFPS_METRICS_PORT': str(port)})
  assert 'task="worker:0"' in _scrape(f'127.0.0.1:{port}')
  assert not [r for r in caplog.records if r.levelname == 'ERROR']


@pytest.mark.parametrize('value', ['x', '-1', '65536', '1.5', 'a b:1', ':80'])
def test_a_port_that_is_none_is_named_with_its_source(value):
  with pytest.raises(ValueError, match='TFPS_METRICS_PORT') as caught:
    _begin(env={'TFPS_METRICS_PORT': value})
  assert repr(value) in str(caught.value)


def test_without_the_library_the_extra_is_named(monkeypatch):
  monkeypatch.setitem(__import__('sys').modules, 'prometheus_client', None)
  with pytest.raises(ImportError, match=r'tfps\[metrics\]'):
    prometheus.text(registry_lib.Registry())
