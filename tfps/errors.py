"""Errors that a caller can react to; bad input raises `ValueError`."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
import functools
import os
import re

_NAMED = 5  # variables that a message names
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
  """Two tasks have different definitions of their cluster."""


class ReplacedError(Error):
  """Another process has replaced this one in its cluster."""


class CheckpointError(Error):
  """A checkpoint is damaged, does not fit, or could not be written."""


class InputError(Error):
  """Data could not be read; the message names the file or other source."""


class TaskFailedError(Error):
  """A task of a launched job failed, which has ended the job.

  Attributes:
    task: the task, such as 'worker:1'.
    status: its exit status, 128 + n if signal n ended it.
  """

  def __init__(self, message: str, *, task: str, status: int) -> None:
    super().__init__(message)
    self.task = task
    self.status = status

  def __reduce__(self) -> tuple[Callable[[str], Error], tuple[str]]:
    # Engines pickle errors; by default, keywords are lost.
    make = functools.partial(
      TaskFailedError, task=self.task, status=self.status
    )
    return make, (str(self),)


def not_restarted(tasks: Iterable[str], timeout_secs: float) -> DeadlineError:
  """Returns the error for lost tasks that were not restarted in time.

  Args:
    tasks: the tasks and their addresses, such as 'ps:0 at host:2222'.
    timeout_secs: how long they were waited for.
  """
  return DeadlineError(
    f'{", ".join(tasks)} was lost and has not been restarted within '
    f'{timeout_secs:g} seconds. Start it again, there or at another address '
    'that its own cluster specification has beside those of the other tasks.'
  )


def other_shapes(
  path: str, variables: Sequence[tuple[str, list[int], list[int]]]
) -> CheckpointError:
  """Returns the error for a checkpoint of variables of other shapes.

  Args:
    path: the checkpoint.
    variables: for each of them its name, its shape in the checkpoint, and that
      in this program.
  """
  named = [
    f'{name} has shape {saved} there, and {own} in this program'
    for name, saved, own in variables[:_NAMED]
  ]
  if len(variables) > _NAMED:
    named.append(f'and so on for {len(variables) - _NAMED} more')
  return CheckpointError(
    f'{path} cannot be restored: {"; ".join(named)}. If a vocabulary has '
    'changed, tfps.checkpoints.warm_start restores the rows that are in both, '
    'by number or by token; otherwise start the program that saved it.'
  )


def unwritable_directory(
  directory: str | os.PathLike[str], error: OSError
) -> CheckpointError:
  """Returns the error for a directory that snapshots cannot be written to."""
  return CheckpointError(
    f'{directory}, where snapshots are saved, cannot be written: {error}. Make '
    'it writable, or give another directory.'
  )


_PLACES = ('Graph execution error', 'Detected at node', ' ', '\t')


def first_line(error: BaseException) -> str:
  """Returns an error's first line without what TensorFlow adds to it."""
  text = _DECORATION.sub('', str(error)).strip()
  lines = text.splitlines() or [type(error).__name__]
  # Of a function, the places come first where its operation was made.
  said = [line for line in lines if line and not line.startswith(_PLACES)]
  return (said or lines)[0]
