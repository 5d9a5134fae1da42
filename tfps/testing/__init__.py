"""Real clusters for tests, in this process or as processes, and faults.

The pytest plugin `tfps.testing.pytest_plugin` provides clusters as fixtures.
"""

import importlib
from typing import Any
from typing import TYPE_CHECKING

from tfps.testing.chaos.disks import full_disk
from tfps.testing.chaos.disks import small_disk
from tfps.testing.chaos.network import Network
from tfps.testing.chaos.network import Traffic
from tfps.testing.faults import Event
from tfps.testing.faults import Fault
from tfps.testing.faults import Faults
from tfps.testing.faults import random_faults
from tfps.testing.process_cluster import ProcessCluster

if TYPE_CHECKING:
  from tfps.testing.in_process_cluster import InProcessCluster

__all__ = [
  'Event',
  'Fault',
  'Faults',
  'InProcessCluster',
  'Network',
  'ProcessCluster',
  'Traffic',
  'full_disk',
  'random_faults',
  'small_disk',
]


def __getattr__(name: str) -> Any:
  # Imported late: it imports TensorFlow, which loading the plugin must not.
  if name == 'InProcessCluster':
    module = importlib.import_module('tfps.testing.in_process_cluster')
    return module.InProcessCluster
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
