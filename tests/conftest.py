"""What all tests have in common."""

import contextlib
import dataclasses
import gc
import os
import pathlib
import sys

import pytest

from tests.support import crashes

_HERE = pathlib.Path(__file__).parent

# Set before TensorFlow is imported, and inherited by the tests' processes.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
# Each server in this process, which never ends, has so many threads for calls
# to other tasks, 64 by default; thousands of them made everything slow.
os.environ.setdefault('TF_GRPC_WORKER_CACHE_QUEUES', '4')
# Programs of the tests import others; where all have the same environment, one
# process forks them all.
os.environ.setdefault('PYTHONPATH', str(_HERE.parent))

# Graphs are many objects of which few are garbage; looking for it in between
# took a tenth of the time.
gc.set_threshold(100_000, 50, 50)

_TIERS = ('process', 'cluster', 'unit')


@pytest.fixture(autouse=True)
def leaves_scopes():
  """Leaves the strategies' scopes that a test has not left, and fails it.

  Without that, the tests after it would fail in its process.
  """
  yield
  if 'tensorflow' in sys.modules:
    from tfps._compat import scopes

    if scopes.leave_all():
      pytest.fail("The test has not left a strategy's scope.")


@pytest.fixture(autouse=True)
def ps_see_each_other():
  """Lets ps that move be found after a strategy of TensorFlow has connected.

  The runtime keeps the device filters of the first that does, and tests of both
  share a process.
  """
  if 'tensorflow' in sys.modules:
    from tfps._compat import strategy

    strategy.let_ps_see_each_other()


@pytest.fixture(scope='module')
def ps_server():
  """A server of ps:0 in this process, whose only task it knows."""
  import tfps

  return tfps.Server(
    tfps.Cluster({'ps': {0: 'localhost:0'}, 'worker': {}}, tfps.Task('ps', 0))
  )


@pytest.fixture
def mailbox(ps_server):
  """The server's mailbox, empty."""
  from tfps.server import mailbox as mailbox_lib

  with mailbox_lib.Mailbox(ps_server.address, timeout_secs=30) as mailbox:
    mailbox.take()
    yield mailbox


@pytest.fixture
def set_timeouts(monkeypatch):
  """Replaces some of this process' timeouts until the test has ended."""
  from tfps._utils import timeouts

  def replace(**secs):
    times = dataclasses.replace(timeouts.current(), **secs)
    monkeypatch.setattr(timeouts, 'current', lambda: times)

  return replace


@pytest.fixture
def start_workers():
  """Starts what `starting.workers` makes, until the test has ended."""
  from tests.support import starting

  with contextlib.ExitStack() as stack:
    yield lambda *args, **env: stack.enter_context(
      starting.workers(*args, **env)
    )


def pytest_addoption(parser):
  parser.addoption(
    '--exhaustive',
    action='store_true',
    help='run each case in every way, and count further',
  )


def pytest_configure(config):
  crashes.register(config)
  # A tenth of the time went into the rewriting of graphs for oneDNN, which
  # looks through all kernels for each operation. With --exhaustive, all is as
  # users have it.
  if not config.getoption('--exhaustive'):
    os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '0')


def pytest_collection_finish():
  """Has garbage collection ignore modules and tests, which stay."""
  gc.freeze()


def pytest_collection_modifyitems(config, items):
  """Puts files in an order, and leaves out what need not be run."""
  if not config.getoption('--exhaustive'):
    left_out = {item for item in items if item.get_closest_marker('exhaustive')}
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=list(left_out))
  for item in items:
    if _tier(item.path) == 'unit' and not item.get_closest_marker('slow'):
      item.add_marker(pytest.mark.quick)
  places = _places(dict.fromkeys(item.path for item in items))
  items.sort(key=lambda item: places[item.path])


def _places(paths):
  """Where each file comes.

  Those of units are the first: once a process has connected to a cluster, each
  function that it makes is sent to all tasks, and units take half as long
  again. Those of the other tiers mix, because one waits for processes while the
  other one computes.
  """
  by_tier = {tier: [p for p in paths if _tier(p) == tier] for tier in _TIERS}
  return {
    path: (tier != 'unit', number / len(files))
    for tier, files in by_tier.items()
    for number, path in enumerate(files)
  }


def _tier(path):
  """A file's tier; a file in no folder of one counts as of the first."""
  folder = path.relative_to(_HERE).parts[0]
  return folder if folder in _TIERS else _TIERS[0]
