"""Plugin of pytest that tells how a process of the suite has crashed.

A crashed test's report has the exit status of its process, and the stacks of
the process' threads if the interpreter could still write them.
"""

import faulthandler
import os
import pathlib
import shutil
import tempfile

import pytest

_FOLDER = 'crashes'  # in what each process gets from the one that starts it


class _Starting:
  """Hooks of the process that starts the others."""

  def __init__(self):
    self._folder = pathlib.Path(tempfile.mkdtemp(prefix='tfps-crashes-'))
    self._last = ''

  @pytest.hookimpl(optionalhook=True)
  def pytest_configure_node(self, node):
    node.workerinput[_FOLDER] = str(self._folder)

  @pytest.hookimpl(optionalhook=True)
  def pytest_testnodedown(self, node, error):
    if error is None:
      return
    process = node.gateway._io.popen  # the only way to its exit status
    status = process.wait(timeout=30)
    path = self._folder / node.gateway.id
    stacks = path.read_text().split('\n\n') if path.exists() else []
    stacks.sort(key=lambda stack: not stack.startswith('Current thread'))
    self._last = '\n\n'.join([f'{node.gateway.id}: status {status}', *stacks])

  @pytest.hookimpl(optionalhook=True)
  def pytest_handlecrashitem(self, report):
    report.longrepr = f'{report.longrepr}\n{self._last}'

  def pytest_unconfigure(self):
    shutil.rmtree(self._folder)


class _Started:
  """Hooks of a process that runs tests for another."""

  @pytest.hookimpl(trylast=True)  # pytest writes the stacks to stderr
  def pytest_sessionstart(self, session):
    path = pathlib.Path(session.config.workerinput[_FOLDER])
    self._file = (path / os.environ['PYTEST_XDIST_WORKER']).open('w')
    faulthandler.enable(self._file)


def register(config):
  """Registers the plugin's hooks."""
  hooks = _Started() if hasattr(config, 'workerinput') else _Starting()
  config.pluginmanager.register(hooks)
