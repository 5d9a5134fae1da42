"""Errors of objects whose strategy has been closed or replaced.

Once a strategy is closed, its servers end, and what still uses a variable on
them gets an error of the connection. Once another strategy has connected this
process to another cluster, the error is one of the variable's device. Neither
tells anybody what to do. Where a resource is deleted, there is nothing to do.
"""

import contextlib
import functools
import re
import types
from typing import Any
import weakref

import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from tfps._compat import error_sources

_REMOTE = re.compile(r'remote target /job:(\w+)/replica:\d+/task:(\d+)')

_IS_REPLACED = re.compile('invalid device.* connected to a different cluster')

# The closed strategy, while this process has not connected again.
_closed: list[str] = []
# Strategies that others have replaced.
_replaced: weakref.WeakSet[tf.distribute.Strategy] = weakref.WeakSet()


def note_connected() -> None:
  """Explains no errors by a closed strategy any more.

  That one may have been deleted, so that nothing tells that it is replaced.
  """
  _closed.clear()
  _silence_deleters()


def note_closed(strategy: str) -> None:
  """Explains errors of servers that do not answer from now on.

  Args:
    strategy: its name.
  """
  _explain()
  _closed[:] = [strategy]


def note_replaced(strategy: tf.distribute.Strategy) -> None:
  """Explains errors of a strategy's variables.

  Args:
    strategy: the one that another is about to replace.
  """
  _explain()
  _closed.clear()
  _replaced.add(strategy)


@functools.cache
def _explain() -> None:
  error_sources.explain(tf.errors.UnavailableError, _of_closed)
  error_sources.explain(tf.errors.InvalidArgumentError, _of_replaced)


@functools.cache
def _silence_deleters() -> None:
  """Lets queues be deleted whose servers have ended or were replaced.

  The deleter of a resource runs an operation. Errors of a destructor are
  printed, whenever the garbage collector runs: TensorFlow drops them for tables
  and iterators, but not for queues and summary writers.
  """
  deleter: Any = resource_variable_ops.EagerResourceDeleter
  theirs = deleter.__del__

  @functools.wraps(theirs)
  def delete(self: Any) -> None:
    with contextlib.suppress(tf.errors.OpError):
      theirs(self)

  deleter.__del__ = delete


def _of_replaced(message: str, frame: types.FrameType) -> str:
  if not _IS_REPLACED.search(message):
    return message
  variables = [
    variable
    for variable in error_sources.variables(frame)
    if getattr(variable, '_distribute_strategy', None) in _replaced
  ]
  if not variables:
    return message
  kind = type(variables[0]._distribute_strategy).__name__
  names = error_sources.users(frame) or error_sources.names(variables)
  return (
    f'{kind}: this process has made another strategy since, and uses one at a '
    f'time: {", in ".join(names)} cannot be reached. Save models before the '
    'next strategy is made, and load them under it.'
  )


def _of_closed(message: str, frame: types.FrameType) -> str:
  remote = _REMOTE.search(message)
  if not remote or not _closed:
    return message
  names = error_sources.users(frame) or error_sources.names(
    error_sources.variables(frame)
  )
  used = f' It is needed by {", in ".join(names)}.' if names else ''
  return (
    f'{_closed[0]}: it is closed, and {remote[1]}:{remote[2]} has ended since.'
    f'{used} Use and save models and variables before the strategy, or its '
    'coordinator, is closed; now load what was saved.'
  )
