"""The web page in a browser, of facts that no job is needed for."""

import time

import pytest

from tests.support import browser as browser_lib
from tfps.monitor import dashboard

pytestmark = [
  pytest.mark.exhaustive,
  pytest.mark.skipif(not browser_lib.find(), reason=browser_lib.MISSING),
]

_HTML = '<b id="html">x</b><img src=x onerror="document.title=\'run\'">'


def _task(name, **facts):
  return {
    'task': name,
    'state': 'alive',
    'incarnation': 'ff',
    'steps_per_sec': None,
    'lag': None,
    'bytes_per_sec': None,
    'memory_bytes': 10**9,
    'doing': '',
    'event': '',
    'address': 'h0:1',
    **facts,
  }


def _moment(at, number):
  return {
    'at': at,
    'staleness': None,
    'steps_per_sec': {f'worker:{i}': float(i) for i in range(number)},
    'bytes_per_sec': {'ps:0': 1.0},
  }


def _facts(**facts):
  now = time.time()
  return {
    'task': 'chief:0',
    'at': now,
    'every_secs': 0.2,
    'is_over': False,
    'tasks': [_task('chief:0')],
    'events': [],
    'staleness': [],
    'values': {},
    'configuration': {},
    'placement': {},
    'history': [_moment(now, 2)],
    **facts,
  }


@pytest.fixture(scope='module')
def browser():
  with browser_lib.Browser() as browser:
    yield browser


@pytest.fixture
def show(browser):
  """Shows facts, or those that a function of the time returns."""
  servers = []

  def show_facts(facts):
    server = dashboard.Server('127.0.0.1', 0, is_secured=False)
    server.source = facts if callable(facts) else lambda after: facts
    server.start()
    servers.append(server)
    browser.errors.clear()
    browser.open(f'http://127.0.0.1:{server.server_port}')
    return server

  yield show_facts
  browser.open('about:blank')
  for server in servers:
    server.stop()


def _wait_for_state(browser, text):
  browser.wait_for(lambda: text in browser.text('#state'))


def test_what_tasks_tell_is_text_and_no_html(browser, show):
  show(
    _facts(
      tasks=[_task(_HTML, doing=_HTML, event=_HTML, address=_HTML)],
      events=[{'at': 1.0, 'told_by': _HTML, 'text': _HTML}],
      values={_HTML: _HTML},
      configuration={'program': _HTML, _HTML: _HTML},
      history=[{**_moment(1.0, 0), 'steps_per_sec': {_HTML: 1.0}}],
    )
  )
  _wait_for_state(browser, 'Training')
  assert browser.evaluate('document.querySelectorAll("#html, img").length') == 0
  assert _HTML in browser.text('#cluster')
  assert browser.text('#program') == _HTML
  assert browser.errors == []


def test_what_is_not_of_the_page_is_not_executed(browser, show):
  show(_facts())
  _wait_for_state(browser, 'Training')
  browser.evaluate(
    'document.body.insertAdjacentHTML("beforeend", '
    '"<img src=x onerror=\'document.title = 1\'>")'
  )
  browser.wait_for(lambda: browser.evaluate('1') and browser.errors)
  assert any('Content Security Policy' in each for each in browser.errors)
  assert browser.evaluate('document.title').startswith('tfps')


def test_a_hundred_tasks_are_shown_and_their_rates_summed_up(browser, show):
  workers = [_task(f'worker:{i}', steps_per_sec=float(i)) for i in range(100)]
  workers[7]['state'] = 'is unreachable'
  now = time.time()
  show(
    _facts(
      tasks=[_task('chief:0'), *workers],
      history=[_moment(now - 2, 100), _moment(now, 100)],
    )
  )
  _wait_for_state(browser, 'Training')
  assert len(browser.texts('.task')) == 101
  assert browser.texts('.task.lost .name') == ['worker:7']
  assert '100 of 101' in browser.text('#values')
  legend = browser.text('#steps .u-legend')
  assert 'all 100' in legend
  assert 'worker:0' not in legend
  assert browser.errors == []


def test_an_end_is_told_and_the_last_state_stays(browser, show):
  show(_facts(is_over=True, values={'global step': 7}))
  _wait_for_state(browser, 'Training is over. This is the last state.')
  assert '7' in browser.text('#values')


def test_a_job_that_ended_unseen_is_told(browser, show):
  show({'is_over': True, 'history': []})
  _wait_for_state(browser, 'Training is over, and nobody had looked at it.')
  assert browser.errors == []


def test_a_chief_that_is_gone_is_told_and_one_that_is_back_is_shown(
  browser, show
):
  server = show(_facts())
  _wait_for_state(browser, 'Training')
  port = server.server_port
  server.stop()
  _wait_for_state(browser, 'No answer from the chief since')
  assert browser.texts('.task .name') == ['chief:0']
  again = dashboard.Server('127.0.0.1', port, is_secured=False)
  again.source = lambda after: _facts()
  again.start()
  _wait_for_state(browser, 'Training')
  again.stop()


def test_an_error_of_the_chief_is_told(browser, show):
  def fail(after):
    raise RuntimeError('no facts')

  show(fail)
  _wait_for_state(browser, 'The chief could not tell about the job')


def test_only_what_is_new_is_asked_for_and_the_history_is_bounded(
  browser, show
):
  asked = []

  def source(after):
    asked.append(after)
    moments = [_moment(float(i), 2) for i in range(1, 2000)]
    return _facts(history=[m for m in moments if m['at'] > after])

  show(source)
  browser.wait_for(lambda: len(asked) > 2)
  assert set(asked) == {0.0, 1999.0}
  assert browser.evaluate('moments.length') == 900
