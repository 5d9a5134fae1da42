"""Headless Chromium, driven by its debugging protocol over two pipes."""

import base64
import contextlib
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import time

from tests.support import waiting

_NAMES = ('chromium', 'chromium-headless-shell', 'google-chrome')
_TIMEOUT_SECS = 60.0

MISSING = 'needs chromium, see tools/install_engines.sh'


def find():
  """The command of a browser; None if there is none."""
  return next(filter(None, map(shutil.which, _NAMES)), None)


class Browser:
  """A browser with one page; a context manager.

  Attributes:
    errors: what the page has complained about: exceptions of its scripts, what
      its policy forbids, and what it could not load.
  """

  def __init__(self, *, width=1280, height=900):
    self.errors = []
    self._number = 0
    self._received = b''
    with contextlib.ExitStack() as stack:
      profile = stack.enter_context(
        tempfile.TemporaryDirectory(
          prefix='tfps-browser-', ignore_cleanup_errors=True
        )
      )
      theirs_in, self._out = os.pipe()
      self._in, theirs_out = os.pipe()
      # It reads from 3 and writes to 4.
      redirected = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
      options = (
        *('--headless', '--disable-gpu', '--disable-dev-shm-usage'),
        *('--no-first-run', '--hide-scrollbars', '--remote-debugging-pipe'),
        *(['--no-sandbox'] if os.geteuid() == 0 else []),
        f'--user-data-dir={profile}',
        f'--window-size={width},{height}',
      )
      self._process = subprocess.Popen(
        ['bash', '-c', redirected, 'bash', find(), *options],
        pass_fds=(theirs_in, theirs_out),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
      )
      stack.callback(self._kill)
      os.close(theirs_in)
      os.close(theirs_out)
      target = self._call('Target.createTarget', url='about:blank')
      attached = self._call(
        'Target.attachToTarget', targetId=target['targetId'], flatten=True
      )
      self._session = attached['sessionId']
      for domain in ('Page', 'Runtime', 'Log'):
        self._ask(f'{domain}.enable')
      self._stack = stack.pop_all()

  def __enter__(self):
    return self

  def __exit__(self, *exc_info):
    self._stack.close()

  def open(self, url):
    """Goes to a page."""
    found = self._ask('Page.navigate', url=url)
    assert not found.get('errorText'), found

  def evaluate(self, expression):
    """The value of an expression of JavaScript in the page."""
    found = self._ask(
      'Runtime.evaluate', expression=expression, returnByValue=True
    )
    assert 'exceptionDetails' not in found, found
    return found['result'].get('value')

  def text(self, selector='body'):
    """The text of an element that is shown; '' if there is none."""
    chosen = json.dumps(selector)
    return self.evaluate(f'document.querySelector({chosen})?.innerText ?? ""')

  def texts(self, selector):
    """The texts of all such elements."""
    chosen = json.dumps(selector)
    return self.evaluate(
      f'[...document.querySelectorAll({chosen})].map((e) => e.innerText)'
    )

  def wait_for(self, condition, *, timeout_secs=120.0):
    """Waits until a condition holds, and tells what the page has if not."""
    waiting.until(
      condition,
      timeout_secs=timeout_secs,
      every_secs=0.2,
      say=lambda: f'{self.text()}\n{self.errors}',
    )

  def take_screenshot(self, path: pathlib.Path):
    """Keeps a picture of the whole page."""
    size = self._ask('Page.getLayoutMetrics')['cssContentSize']
    found = self._ask(
      'Page.captureScreenshot',
      captureBeyondViewport=True,
      clip={**size, 'scale': 1},
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(base64.b64decode(found['data']))

  def _ask(self, method, **params):
    return self._call(method, session=self._session, **params)

  def _call(self, method, *, session=None, **params):
    self._number += 1
    message = {'id': self._number, 'method': method, 'params': params}
    if session:
      message['sessionId'] = session
    os.write(self._out, json.dumps(message).encode() + b'\0')
    deadline = time.monotonic() + _TIMEOUT_SECS
    while True:
      answer = self._receive(deadline)
      if answer.get('id') == self._number:
        assert 'error' not in answer, answer
        return answer['result']
      self._note(answer)

  def _note(self, event):
    params = event.get('params', {})
    if event.get('method') == 'Runtime.exceptionThrown':
      details = params['exceptionDetails']
      told = details.get('exception', {}).get('description')
      self.errors.append(told or details['text'])
    elif event.get('method') == 'Log.entryAdded':
      entry = params['entry']
      if entry['level'] in ('error', 'warning'):
        self.errors.append(entry['text'])

  def _receive(self, deadline):
    while b'\0' not in self._received:
      left = deadline - time.monotonic()
      ready, _, _ = select.select([self._in], [], [], max(0.0, left))
      assert ready, 'the browser does not answer'
      data = os.read(self._in, 1 << 16)
      assert data, 'the browser has ended'
      self._received += data
    message, _, self._received = self._received.partition(b'\0')
    return json.loads(message)

  def _kill(self):
    self._process.kill()
    self._process.wait()
    os.close(self._in)
    os.close(self._out)
