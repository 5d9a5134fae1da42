"""The errors that a caller can react to; bad input raises `ValueError`."""

from collections.abc import Iterable
import re

_DECORATION = re.compile(r'\{\{.*?\}\} ?| ?\[Op:\w*\]')


class Error(Exception):
  """Base of every error of this package."""


class ServerStartError(Error):
  """A task's server could not start, for example because its port is taken."""


class UnreachableError(Error):
  """Tasks did not answer, or other tasks answered at their addresses."""


class DeadlineError(Error, TimeoutError):
  """A wait ran out of time; the message names the tasks it waited for."""


class ClusterMismatchError(Error):
  """Two tasks hold different ideas of the cluster they are in."""


class ReplacedError(Error):
  """Another process has taken this one's place in its cluster."""


class CheckpointError(Error):
  """A checkpoint is damaged, does not fit, or could not be written."""


class InputError(Error):
  """Data could not be read; the message names the file, or what else it is."""


def not_back(tasks: Iterable[str], timeout_secs: float) -> DeadlineError:
  """The error that names tasks that were lost and have not been restarted."""
  return DeadlineError(
    f'After {timeout_secs:g} seconds, {", ".join(tasks)} has not come back. '
    'Start it again, at the same address.'
  )


def unwritable(directory: object, error: OSError) -> CheckpointError:
  """The error that names a directory which variables cannot be kept in."""
  return CheckpointError(
    f'{directory}, where variables are to be kept, cannot be written: {error}.'
  )


def first_line(error: BaseException) -> str:
  """What an error says, without the stacks and names TensorFlow adds to it."""
  text = _DECORATION.sub('', str(error)).strip()
  return (text.splitlines() or [type(error).__name__])[0]
