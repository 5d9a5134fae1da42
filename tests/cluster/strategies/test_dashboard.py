"""The web page of a strategy's job, which its chief serves."""

import json
import urllib.request

import portpicker
import pytest
import tensorflow as tf

import tfps
from tfps.monitor import dashboard
from tfps.monitor import registry as registry_lib

pytestmark = pytest.mark.tfps_cluster(workers=2, ps=2)

_SETTINGS = {
  'variable_partitioner': tfps.partitioners.FixedShards(2),
  'updates': tfps.updates.Sync(),
}


@pytest.fixture
def port(monkeypatch):
  """The port of the page, which the environment asks for."""
  port = portpicker.pick_unused_port()
  monkeypatch.setenv('TFPS_DASHBOARD_PORT', str(port))
  registry = registry_lib.Registry()
  monkeypatch.setattr(registry_lib, 'of_process', lambda: registry)
  dashboard._serve_once.cache_clear()
  yield port
  dashboard._serve_once(str(port), 'TFPS_DASHBOARD_PORT', False).stop()
  dashboard._serve_once.cache_clear()


def _read(port):
  url = f'http://127.0.0.1:{port}/data'
  with urllib.request.urlopen(url, timeout=30) as answer:
    return json.load(answer)


def _check(found, strategy):
  tasks = {task['task']: task['state'] for task in found['tasks']}
  assert set(tasks) >= {'chief:0', 'ps:0', 'ps:1'}
  assert set(tasks.values()) == {'alive'}
  configuration = found['configuration']
  assert configuration['strategy'] == type(strategy).__name__
  assert configuration['updates'] == repr(_SETTINGS['updates'])
  assert configuration['variable_partitioner'] == 'FixedShards(num_shards=2)'
  assert configuration['TensorFlow'] == tf.__version__
  report = strategy.placement_report()
  for ps, num_bytes in enumerate(report.num_bytes):
    held = found['placement'][f'ps:{ps}']
    assert held['num_bytes'] == num_bytes >= 12
    assert held['num_variables'] == len(held['variables'])
    assert tuple(held['variables']) == report.variables[ps]


def test_a_strategy_without_ps_shows_its_chief(port):
  strategy = tfps.AllReduceStrategy(tfps.Cluster.local())
  found = _read(port)
  assert [task['task'] for task in found['tasks']] == ['chief:0']
  assert found['placement'] == {}
  assert found['configuration']['strategy'] == 'AllReduceStrategy'
  strategy.close()


@pytest.mark.parametrize(
  'kind', [tfps.ParameterServerStrategy, tfps.BetweenGraphStrategy]
)
def test_the_page_tells_tasks_variables_and_settings(tfps_cluster, port, kind):
  strategy = kind(tfps_cluster.cluster, **_SETTINGS)
  with strategy.scope():
    tf.Variable(tf.zeros([2, 3]), name='weights')
  _check(_read(port), strategy)
  strategy.close()
  found = _read(port)
  assert found['is_over']
  assert found['tasks']
