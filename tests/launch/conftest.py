"""What tests of engines share, and what they see, for a table in the docs."""

import pytest

from tests.launch import matrix
from tests.support import flights

_SEEN = pytest.StashKey[dict[tuple[str, str], str]]()


@pytest.fixture(scope='session')
def data(tmp_path_factory):
  """A file with flights."""
  path = tmp_path_factory.mktemp('flights') / 'flights.npz'
  flights.write(path)
  return path


def pytest_addoption(parser):
  parser.addoption(
    '--write_matrix',
    action='store_true',
    help='write into docs/launch.md what each engine was seen to do',
  )


def pytest_configure(config):
  config.stash[_SEEN] = {}


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
  report = (yield).get_result()
  params = getattr(item, 'callspec', None) and item.callspec.params
  engine = params and params.get('engine')
  if engine is None or not (report.when == 'call' or report.skipped):
    return
  cell = {'passed': 'yes', 'failed': 'NO'}.get(report.outcome)
  if report.skipped:
    cell = report.longrepr[2].removeprefix('Skipped: ')
  item.config.stash[_SEEN][item.function.__doc__, engine.name] = cell


def pytest_sessionfinish(session):
  if not session.config.getoption('--write_matrix'):
    return
  seen = session.config.stash[_SEEN]
  matrix.PAGE.write_text(matrix.update(matrix.PAGE.read_text(), seen))
