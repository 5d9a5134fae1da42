"""What executions of a queue's batches work on, and what has them done."""

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
from tfps.training import joint_attempts
from tfps.training import queue_attempts
from tfps.training import step_program
from tfps.variables import step_replicas

Attempt = queue_attempts.Attempt | joint_attempts.Attempt

_Traced = TypeVar('_Traced')


@dataclasses.dataclass(frozen=True)
class Sources:
  """Of batches.

  Attributes:
    full: of as many steps as are done at once.
    singles: of one step, by how many batches it takes.
    may_wait: whether the latter may be traced once they are needed, because
      nothing is executed any more once a task is lost.
  """

  full: step_program.Source
  singles: Mapping[int, step_program.Source]
  may_wait: bool = False

  def traced(self, trace: Callable[[Any], _Traced]) -> Callable[[int], _Traced]:
    """Has single steps traced; gives them by how many batches one takes."""
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
  """Those of so many steps at once, or of one, which have some replicas."""
  spec, add = readers.element_spec, readers.split_progress.add
  if isinstance(readers, joint_readers.JointReaders):
    own = batch_list.Source(spec, add, ahead=0, width=replicas.per_worker)
    singles = {n: joint_batches.Dealt(own, n) for n in replicas.sizes}
    full = joint_batches.Lists(own, len(readers.devices))
    return Sources(full, singles, may_wait=True)
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
  """One to do so many steps, if there are batches for them."""
  if isinstance(readers, joint_readers.JointReaders):
    return joint_attempts.Attempt(readers, wanted, steps)
  return queue_attempts.Attempt(readers, wanted, steps)
