"""Parameter-server training for TensorFlow 2 and Keras 3.

Names that need TensorFlow are imported when they are first used, so that a
supervisor of tasks, which needs only cluster facts, stays small and quick.
"""

import importlib
from typing import Any
from typing import TYPE_CHECKING

from tfps.cluster import Cluster
from tfps.cluster import Task
from tfps.errors import Error

if TYPE_CHECKING:
  pass

_LAZY: dict[str, str] = {}

__all__ = [
  'Cluster',
  'Error',
  'Task',
]


def __getattr__(name: str) -> Any:
  if name not in _LAZY:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
  return sorted(__all__)
