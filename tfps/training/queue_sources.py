"""Sources and attempts of executions on batches of a queue."""

from collections.abc import Callable
from collections.abc import Mapping
import dataclasses
import functools
from typing import Any
from typing import TypeVar

from tfps.input import batch_list
from tfps.input import joint_batches
from tfps.input import joint_readers
from tfps.input import readers as readers_lib
from tfps.input import sources
from tfps.training import joint_attempts
from tfps.training import queue_attempts
from tfps.variables import step_replicas

Attempt = queue_attempts.Attempt | joint_attempts.Attempt

_Traced = TypeVar('_Traced')


@dataclasses.dataclass(frozen=True)
class Sources:
  """Sources of full executions and of single steps.

  Attributes:
    full: the source of a full execution.
    singles: the sources of a single step, by how many batches it takes.
    may_wait: whether single steps may be traced when first needed, because
      training ends when a task is lost.
  """

  full: sources.Source
  singles: Mapping[int, sources.Source]
  may_wait: bool = False

  def traced(self, trace: Callable[[Any], _Traced]) -> Callable[[int], _Traced]:
    """Traces single steps.

    Args:
      trace: traces a step of a source.

    Returns:
      A function from the number of batches to the traced step.
    """
    traced = functools.cache(lambda size: trace(self.singles[size]))
    if not self.may_wait:
      for size in self.singles:
        traced(size)
    return traced


def of(
  readers: readers_lib.Readers | joint_readers.JointReaders,
  replicas: step_replicas.Replicas,
  num_steps: int,
) -> Sources:
  """Returns the sources of executions.

  Args:
    readers: the readers of the batches.
    replicas: the replicas of a step.
    num_steps: how many steps a full execution has.
  """
  spec, add = readers.element_spec, readers.split_progress.add
  if isinstance(readers, joint_readers.JointReaders):
    own = batch_list.Source(spec, add, ahead=0, width=replicas.per_worker)
    singles = {n: joint_batches.Dealt(own, n) for n in replicas.sizes}
    full = joint_batches.Lists(own, len(readers.devices))
    return Sources(full, singles, may_wait=not readers.outlasts)
  width = len(replicas.devices)
  return Sources(
    batch_list.Source(spec, add, ahead=num_steps * width, width=width),
    {n: batch_list.Source(spec, add, ahead=0, width=n) for n in replicas.sizes},
  )


def attempt(
  readers: readers_lib.Readers | joint_readers.JointReaders,
  wanted: int,
  steps: queue_attempts.Steps,
) -> Attempt:
  """Returns an attempt at an execution.

  Args:
    readers: the readers of the batches.
    wanted: how many steps to do, if there are enough batches.
    steps: executes them.
  """
  if isinstance(readers, joint_readers.JointReaders):
    return joint_attempts.Attempt(readers, wanted, steps)
  return queue_attempts.Attempt(readers, wanted, steps)
