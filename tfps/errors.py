"""The errors that a caller can react to; bad input raises `ValueError`."""

from collections.abc import Iterable


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
  """A checkpoint is damaged, or does not fit what is to be restored."""


def not_back(tasks: Iterable[str], timeout_secs: float) -> DeadlineError:
  """The error that names tasks that were lost and have not been restarted."""
  return DeadlineError(
    f'After {timeout_secs:g} seconds, {", ".join(tasks)} has not come back. '
    'Start it again, at the same address.'
  )


def first_line(error: BaseException) -> str:
  """What an error says, without the stacks that TensorFlow adds to it."""
  return (str(error).strip().splitlines() or [type(error).__name__])[0]
