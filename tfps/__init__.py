"""Parameter-server training for TensorFlow 2 and Keras 3.

Names that need TensorFlow are imported when they are first used, so that a
supervisor of tasks, which needs only cluster facts, stays small and quick.

TensorFlow's own messages are hidden; see `_compat.messages`.
"""

import importlib
from typing import Any
from typing import TYPE_CHECKING

from tfps._compat import messages as _messages
from tfps.cluster.resolver import define_flags
from tfps.cluster.resolver import resolve_cluster
from tfps.cluster.spec import Cluster
from tfps.cluster.spec import Task
from tfps.errors import CheckpointError
from tfps.errors import ClusterMismatchError
from tfps.errors import DeadlineError
from tfps.errors import Error
from tfps.errors import InputError
from tfps.errors import ReplacedError
from tfps.errors import ServerStartError
from tfps.errors import TaskFailedError
from tfps.errors import UnreachableError

if TYPE_CHECKING:
  from tfps import input
  from tfps import keras
  from tfps import monitor
  from tfps import plan
  from tfps import strategies as replication
  from tfps import testing
  from tfps import updates
  from tfps.keras import embeddings
  from tfps.keras import serving
  from tfps.recovery.config import Recovery
  from tfps.recovery.events import RecoveryEvent
  from tfps.recovery.events import RecoveryReport
  from tfps.security.config import Security
  from tfps.server.server import serve
  from tfps.server.server import Server
  from tfps.strategies.all_reduce import AllReduceStrategy
  from tfps.strategies.between_graph import BetweenGraphStrategy
  from tfps.strategies.parameter_server import ParameterServerStrategy
  from tfps.training import warm_start as checkpoints
  from tfps.training.coordinator import Coordinator
  from tfps.training.evaluation import evaluate_checkpoints
  from tfps.variables import partitioners
  from tfps.variables import placement
  from tfps.wire import codecs
  from tfps.wire.config import Wire

__all__ = [
  'AllReduceStrategy',
  'BetweenGraphStrategy',
  'CheckpointError',
  'Cluster',
  'ClusterMismatchError',
  'Coordinator',
  'DeadlineError',
  'Error',
  'InputError',
  'ParameterServerStrategy',
  'Recovery',
  'RecoveryEvent',
  'RecoveryReport',
  'ReplacedError',
  'Security',
  'Server',
  'ServerStartError',
  'Task',
  'TaskFailedError',
  'UnreachableError',
  'Wire',
  'checkpoints',
  'codecs',
  'define_flags',
  'embeddings',
  'evaluate_checkpoints',
  'input',
  'keras',
  'monitor',
  'partitioners',
  'placement',
  'plan',
  'replication',
  'resolve_cluster',
  'serve',
  'serving',
  'testing',
  'updates',
]

_MODULES = {
  'checkpoints': 'training.warm_start',
  'codecs': 'wire.codecs',
  'embeddings': 'keras.embeddings',
  'input': 'input',
  'keras': 'keras',
  'monitor': 'monitor',
  'partitioners': 'variables.partitioners',
  'placement': 'variables.placement',
  'plan': 'plan',
  'replication': 'strategies',
  'serving': 'keras.serving',
  'testing': 'testing',
  'updates': 'updates',
}
_HOMES = {
  'AllReduceStrategy': 'strategies.all_reduce',
  'BetweenGraphStrategy': 'strategies.between_graph',
  'Coordinator': 'training.coordinator',
  'ParameterServerStrategy': 'strategies.parameter_server',
  'Recovery': 'recovery.config',
  'RecoveryEvent': 'recovery.events',
  'RecoveryReport': 'recovery.events',
  'Security': 'security.config',
  'Server': 'server.server',
  'Wire': 'wire.config',
  'evaluate_checkpoints': 'training.evaluation',
  'serve': 'server.server',
}

_messages.quiet()


def __getattr__(name: str) -> Any:
  if name in _MODULES:
    return importlib.import_module(f'tfps.{_MODULES[name]}')
  if name in _HOMES:
    return getattr(importlib.import_module(f'tfps.{_HOMES[name]}'), name)
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__})
