"""The errors that a caller can react to; bad input raises `ValueError`."""


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


class CheckpointError(Error):
  """A checkpoint is damaged, or does not fit what is to be restored."""
