"""Facts for the page of a job of processes, whose chief is this process."""

import json
import urllib.request

import portpicker
import pytest

from tests.support import losses
from tests.support import waiting
import tfps
from tfps.monitor import dashboard

pytestmark = [
  pytest.mark.exhaustive,
  pytest.mark.tfps_cluster(workers=2, ps=2, processes=True),
]


@pytest.fixture
def read(monkeypatch):
  """Reads the facts that the page of this process gets."""
  port = portpicker.pick_unused_port()
  monkeypatch.setenv('TFPS_DASHBOARD_PORT', str(port))

  def read_facts():
    url = f'http://127.0.0.1:{port}/data'
    with urllib.request.urlopen(url, timeout=60) as answer:
      return json.load(answer)

  yield read_facts
  dashboard._serve_once(str(port), 'TFPS_DASHBOARD_PORT', False).stop()


def _states(facts):
  return {task['task']: task['state'] for task in facts['tasks']}


def test_a_ps_that_another_one_serves_is_told(processes, read, tmp_path):
  strategy = tfps.ParameterServerStrategy(
    processes.cluster,
    recovery=tfps.Recovery(tmp_path, every_secs=3600, take_over_secs=0.3),
  )
  variables = losses.counters(strategy)
  with tfps.Coordinator(strategy, timeout_secs=120) as coordinator:
    losses.count_to(coordinator, variables, 50)
    assert set(_states(read()).values()) == {'alive'}
    processes.kill('ps', 1)
    losses.count_to(coordinator, variables, 100)

    def state():
      return _states(read())['ps:1']

    waiting.until(lambda: state() == 'is served by another ps', say=read)
    processes.start('ps', 1)
    waiting.until(lambda: state() == 'alive', say=read)
    texts = [event['text'] for event in read()['events']]
    assert 'moved ps:1' in texts
    assert 'ps:1 is served by another ps' in texts
    losses.count_to(coordinator, variables, 150)
    assert losses.values(variables) == {150}


@pytest.mark.parametrize(
  'kind', [tfps.ParameterServerStrategy, tfps.BetweenGraphStrategy]
)
def test_training_ends_while_a_page_is_open(processes, read, kind):
  strategy = kind(processes.cluster)
  read()
  strategy.close()
  assert read()['is_over']
