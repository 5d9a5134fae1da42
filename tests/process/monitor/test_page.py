"""The web page of a launched job, in a browser, while tasks are lost."""

import json
import pathlib
import re
import signal
import urllib.request

import portpicker
import pytest

from tests.programs import monitored
from tests.support import browser as browser_lib
from tests.support import monitored_jobs

pytestmark = [
  pytest.mark.exhaustive,
  pytest.mark.skipif(not browser_lib.find(), reason=browser_lib.MISSING),
]

_SCREENSHOT = pathlib.Path(__file__).parents[3] / 'runs' / 'page.png'
_TASKS = ['chief:0', 'ps:0', 'ps:1', 'worker:0', 'worker:1']
_FIRST, _SECOND = monitored.GATES


class _Page:
  """The page in a browser.

  Args:
    browser: shows it.
    port: of the page.
  """

  def __init__(self, browser, port):
    self.browser = browser
    self._url = f'http://127.0.0.1:{port}'

  def open(self):
    self.browser.open(self._url)
    self.wait_for('#state', 'Training')

  def facts(self):
    with urllib.request.urlopen(f'{self._url}/data', timeout=30) as answer:
      return json.load(answer)

  def wait_for(self, selector, pattern):
    self.browser.wait_for(
      lambda: re.search(pattern, self.browser.text(selector))
    )

  def lost(self):
    """The names of the tasks that are shown as lost."""
    return self.browser.texts('.task.lost .name')


def _launch(check, folder):
  port = portpicker.pick_unused_port()

  def check_in_browser(job):
    with browser_lib.Browser() as browser:
      page = _Page(browser, port)
      job.wait_for(lambda: 'A page of this job' in job.output('chief:0'))
      page.open()
      check(job, page)
      job.let_go('end')
      _check_the_end(page)
      assert [e for e in browser.errors if 'ERR_CONNECTION' not in e] == []

  return monitored_jobs.launch(
    check_in_browser,
    folder,
    'coordinator',
    *('--max_restarts=2', '--silent_secs=0', f'--dashboard_port={port}'),
  )


def _check_the_end(page):
  """Checks that the last state stays when the chief has ended."""
  page.wait_for('#state', 'No answer from the chief since|Training is over')
  page.wait_for('#state', 'This is the last state')
  assert page.browser.texts('.task .name') == _TASKS
  page.wait_for('#events', 'back ps:1')


def _check_frozen(job, page):
  """Checks that a worker that does not answer is shown so, until it does."""
  job.signal('worker:0', signal.SIGSTOP)
  try:
    page.browser.wait_for(lambda: page.lost() == ['worker:0'])
    assert page.browser.text('.task.lost .state') == 'does not answer'
  finally:
    job.signal('worker:0', signal.SIGCONT)
  page.browser.wait_for(lambda: page.lost() == [])
  page.wait_for('#events', 'worker:0 is alive again')
  page.wait_for('#events', 'worker:0 does not answer')


def _check_killed(job, page, task, gate):
  """Kills a task while the chief waits at a gate, which then lets it go."""
  before = _incarnation(page, task)
  job.kill(task)
  job.let_go(f'go-{gate}')
  page.wait_for('#events', f'back {task}')
  page.browser.wait_for(lambda: page.lost() == [])
  assert _incarnation(page, task) not in (None, before)
  seen = [
    event['text'] for event in page.facts()['events'] if not event['told_by']
  ]
  assert [text for text in seen if text.startswith(f'{task} ')]


def _incarnation(page, task):
  (found,) = [row for row in page.facts()['tasks'] if row['task'] == task]
  return found['incarnation']


def test_the_page_shows_tasks_that_are_lost_and_come_back(tmp_path):
  def check(job, page):
    page.wait_for('#values', r'tasks alive\s*5 of 5')
    page.wait_for('#values', rf'global step\s*{_FIRST}')
    assert page.browser.texts('.task .name') == _TASKS
    assert page.browser.texts('#cluster h3') == [
      'chief (1)',
      'ps (2)',
      'worker (2)',
    ]
    held = page.facts()['placement']['ps:0']
    summary = page.browser.text('.task summary')
    assert summary.startswith(f'{held["num_variables"]} variables, ')
    assert 'ParameterServerStrategy' in page.browser.text('#configuration')
    assert str(tmp_path) in page.browser.text('#configuration')
    _check_frozen(job, page)
    _check_killed(job, page, 'worker:1', _FIRST)
    page.wait_for('#values', rf'global step\s*{_SECOND}')
    _check_killed(job, page, 'ps:1', _SECOND)
    job.wait_for(lambda: 'trained' in job.output('chief:0'))
    page.wait_for('#values', rf'global step\s*{monitored.STEPS}')
    counted = 'document.querySelectorAll("canvas").length'
    assert page.browser.evaluate(counted) == 3
    assert 'worker:1' in page.browser.text('#steps .u-legend')
    assert 'ps:1' in page.browser.text('#bytes .u-legend')
    assert 'up to 0' in page.browser.text('#buckets')
    page.browser.take_screenshot(_SCREENSHOT)
    assert _SCREENSHOT.stat().st_size > 20_000

  assert _launch(check, tmp_path) == 0
