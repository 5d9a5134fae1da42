"""Steps of workers that average gradients and synchronize updates on ps."""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
from typing import Any
import weakref

import tensorflow as tf

from tfps.cluster import spec as spec_lib
from tfps.updates.allreduce import elastic_group as elastic_group_lib
from tfps.updates.sync import participation
from tfps.updates.sync import session as session_lib
from tfps.updates.sync import step_sync


class AllReduceStep(step_sync.BarrierStep):
  """Steps of which each begins once the last has written its updates.

  Attributes:
    count_step: returns a tensor once it has counted a step in this process.
    written: tensors for which the next step waits before it adds up gradients,
      so that workers have equal state whenever one of them is lost.
  """

  count_step: Callable[[], Any]

  def __init__(self, *args: Any) -> None:
    super().__init__(*args)
    self.written: list[Any] = []

  def state(self) -> tuple[tf.Tensor, ...]:
    return *super().state(), step_sync.token_after(self.written)

  def after(self, num_steps: Any, *state: tf.Tensor) -> Any:
    *state_before, token = state
    later = super().after(num_steps, *state_before)
    later.written = [token]
    return later

  @contextlib.contextmanager
  def step(self, number: Any) -> Iterator[None]:
    with super().step(number):
      yield
    with tf.control_dependencies(self.written):
      self.written = [tf.identity(self.count_step())]

  def note_written(self, first: int, tensor: tf.Tensor) -> None:
    """Notes all writes of the function so far.

    Args:
      first: number of operations of the function to skip.
      tensor: any tensor.
    """
    self.written = [step_sync.after_writes(first, tensor)]


class GroupSyncSession(session_lib.SyncSession):
  """Session of a strategy whose workers are an elastic group.

  Attributes:
    elastic_group: group of workers; None if there is a single worker.
    num_steps: number of steps that the group has done, a variable of this
      process that is equal on all workers.
    task: this worker.
    end_change: notes in a step that is traced that it has changed all local
      variables; None if interrupted ones are not undone.
  """

  _step_class = AllReduceStep

  elastic_group: elastic_group_lib.ElasticGroup | None = None
  num_steps: tf.Variable
  task: spec_lib.Task
  end_change: Callable[[], tf.Tensor] | None = None

  def __init__(self, *args: Any, **kwargs: Any) -> None:
    super().__init__(*args, **kwargs)
    self._begun: weakref.WeakKeyDictionary[participation.Attempt, int]
    self._begun = weakref.WeakKeyDictionary()

  def prepare(self, attempt: participation.Attempt) -> bool:
    """Joins a rendezvous if due; returns whether steps are left to do.

    If an attempt failed, others may have done all of it, and this process has
    their state; else all of it is repeated.
    """
    if self.elastic_group is not None:
      self.elastic_group.join()
    now = int(self.num_steps.numpy())
    is_repeated = attempt in self._begun
    done = now - self._begun.get(attempt, now)
    if done >= attempt.num_steps:
      del self._begun[attempt]
      return False
    if is_repeated and self._tell is not None:
      # The ps may have made their part of one more step.
      self._tell(str(self.task), done + 1)
    self._begun[attempt] = now
    return True

  def agree(self, ready: int, *, finished: bool) -> participation.StepDecision:
    if self.elastic_group is None:
      return super().agree(ready, finished=finished)
    agreed = self.elastic_group.agree(ready, finished=finished)
    return participation.StepDecision(
      min(agreed.number, ready),
      agreed.finished,
      is_idle=not agreed.number,
      is_partial=agreed.is_partial,
    )

  def settle(self) -> bool:
    return self.elastic_group is None or self.elastic_group.settle()

  def step_out(self, worker: int) -> None:
    if self.elastic_group is None:  # else `agree` does so
      super().step_out(worker)

  def leave(self, attempt: participation.Attempt) -> None:
    super().leave(attempt)
    self._begun.pop(attempt, None)
    if self.elastic_group is not None:
      self.elastic_group.end_steps()

  def end(self, worker: int) -> None:
    super().end(worker)
    if self.elastic_group is not None:
      self.elastic_group.leave()

  def sync_step(self, *args: Any, **kwargs: Any) -> AllReduceStep:
    made = super().sync_step(*args, **kwargs)
    assert isinstance(made, AllReduceStep)
    made.count_step = self._count_step
    return made

  def _count_step(self) -> tf.Tensor:
    counted = tf.identity(self.num_steps.assign_add(1))
    if self.end_change is None:
      return counted
    with tf.control_dependencies([counted]):
      return self.end_change()
