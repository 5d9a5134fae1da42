"""Errors of objects whose ps or workers have ended with their strategy.

Once a strategy is closed, its servers end. What still uses a variable on them
gets an error of the connection, which tells nobody what to do.
"""

import functools
import re
import types

import tensorflow as tf

from tfps._compat import error_sources

_REMOTE = re.compile(r'remote target /job:(\w+)/replica:\d+/task:(\d+)')

# The closed strategy, while this process has not connected again.
_closed: list[str] = []


def note_closed(strategy: str) -> None:
  """Explains errors of servers that do not answer from now on.

  Args:
    strategy: its name.
  """
  _explain()
  _closed[:] = [strategy]


def note_connecting() -> None:
  """Leaves errors alone: this process is about to have other servers."""
  _closed.clear()


@functools.cache
def _explain() -> None:
  error_sources.explain(tf.errors.UnavailableError, _explanation)


def _explanation(message: str, frame: types.FrameType) -> str:
  remote = _REMOTE.search(message)
  if not remote or not _closed:
    return message
  names = error_sources.users(frame) or error_sources.variables(frame)
  used = f' It is needed by {", in ".join(names)}.' if names else ''
  return (
    f'{_closed[0]}: it is closed, and {remote[1]}:{remote[2]} has ended since.'
    f'{used} Use and save models and variables before the strategy, or its '
    'coordinator, is closed; now load what was saved.'
  )
