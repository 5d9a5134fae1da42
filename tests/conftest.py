"""What all tests have in common."""

import gc
import os
import pathlib

# Set before TensorFlow is imported, and inherited by the tests' processes.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

# Graphs are many objects of which few are garbage; looking for it in between
# took a tenth of the time.
gc.set_threshold(100_000, 50, 50)

_HERE = pathlib.Path(__file__).parent

# Several minutes together: were one of them begun last, all but one of the
# processes that share the suite would wait for it.
_LONGEST = (
  'keras/test_fit.py',
  'test_between_graph_processes.py',
  'wire/test_steps.py',
  'wire/test_counting.py',
  'keras/test_saving.py',
  'test_benchmarks.py',
  'keras/test_models.py',
  'test_readme.py',
  'test_coordinator_faults.py',
  'examples/test_flights.py',
  'examples/test_fashion_mnist.py',
  'testing/test_in_process_cluster.py',
  'test_server.py',
  'keras/test_metrics.py',
  'testing/test_pytest_plugin.py',
  'wire/test_bytes.py',
  'keras/test_fewer_updates.py',
  'examples/test_classic.py',
)


def pytest_addoption(parser):
  parser.addoption(
    '--exhaustive',
    action='store_true',
    help='count further, and in more ways, where tests count steps',
  )


def pytest_collection_modifyitems(items):
  """Puts the files that take longest first."""
  places = {_HERE / name: place for place, name in enumerate(_LONGEST)}
  items.sort(key=lambda item: places.get(item.path, len(places)))
