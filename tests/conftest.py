"""What all tests have in common."""

import contextlib
import dataclasses
import gc
import os
import pathlib

import pytest

# Set before TensorFlow is imported, and inherited by the tests' processes.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

# Graphs are many objects of which few are garbage; looking for it in between
# took a tenth of the time.
gc.set_threshold(100_000, 50, 50)

_HERE = pathlib.Path(__file__).parent

# Several minutes together: were one of them begun last, all but one of the
# processes that share the suite would wait for it.
_LONGEST = (
  'recovery/test_between_graph.py',
  'recovery/test_lost_ps.py',
  'recovery/test_lease.py',
  'recovery/test_snapshots.py',
  'recovery/test_full_disk.py',
  'recovery/test_repeats.py',
  'recovery/test_handing_over.py',
  'recovery/test_joining.py',
  'replication/test_hybrid_processes.py',
  'replication/test_hybrid_queues.py',
  'updates/test_by_host.py',
  'updates/test_sync_faults.py',
  'input/test_losses.py',
  'input/test_by_host.py',
  'keras/test_fit.py',
  'keras/test_concurrent_updates.py',
  'examples/test_flights.py',
  'recovery/test_leaving.py',
  'examples/test_fashion_mnist.py',
  'keras/test_fewer_updates.py',
  'test_training_loop.py',
  'keras/test_optimizers.py',
  'test_readme.py',
  'test_between_graph_processes.py',
  'keras/test_models.py',
  'keras/test_callbacks.py',
  'test_launch.py',
  'testing/test_process_cluster.py',
  'wire/test_steps.py',
  'input/test_queue.py',
  'testing/test_pytest_plugin.py',
  'testing/test_campaign.py',
  'testing/test_in_process_cluster.py',
  'keras/test_saving.py',
  'test_coordinator_faults.py',
  'test_benchmarks.py',
  'wire/test_counting.py',
  'testing/test_network.py',
  'examples/test_classic.py',
)


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

  with mailbox_lib.Mailbox(
    ps_server.task, ps_server.address, timeout_secs=30
  ) as mailbox:
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
  from tests import starting

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


def pytest_collection_modifyitems(config, items):
  """Puts the files that take longest first, without what need not be run."""
  if not config.getoption('--exhaustive'):
    left_out = {item for item in items if item.get_closest_marker('exhaustive')}
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=list(left_out))
  places = {_HERE / name: place for place, name in enumerate(_LONGEST)}
  items.sort(key=lambda item: places.get(item.path, len(places)))
