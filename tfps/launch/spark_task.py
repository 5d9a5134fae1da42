"""Task of a job in an executor of Spark, as one task of a barrier stage.

All tasks tell each other their addresses first, and then, round by round, how
they are. A task that fails so stops all others, which end without an error:
Spark would start the stage again for one.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import json
import os
import threading
import time
from typing import Any

from tfps._utils import ports
from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib
from tfps.launch import ends as ends_lib
from tfps.launch import job as job_lib
from tfps.launch import task_process


@dataclasses.dataclass(frozen=True)
class End:
  """The end of a task.

  Attributes:
    task: the task.
    outcome: how its program ended.
    was_stopped: whether another task's end, or failure, has ended it.
  """

  task: spec_lib.Task
  outcome: task_process.Outcome
  was_stopped: bool


def run(
  order: task_process.Order, ends: ends_lib.Ends, items: Iterable[Any]
) -> Iterator[End]:
  """Runs one task of a job; for `RDDBarrier.mapPartitions`.

  Args:
    order: what to run; its task is that of the partition.
    ends: when the job ends.
    items: those of the partition.

  Yields:
    The task's end.
  """
  import pyspark

  del items
  context = pyspark.BarrierTaskContext.get()
  tasks = order.job.tasks()
  task = tasks[context.partitionId()]
  order = dataclasses.replace(
    order, task=task, folders=(*order.folders, *_own_folders())
  )
  host = context.getTaskInfos()[context.partitionId()].address.split(':')[0]
  hosts_and_ports = context.allGather(f'{host}:{ports.pick()}')
  addresses = dict(zip(tasks, hosts_and_ports, strict=True))
  gpus = context.resources().get('gpu')
  env = visible_gpus(order.job, task, addresses, gpus and gpus.addresses)
  # Python is not told which attempt of the stage this is.
  process = task_process.TaskProcess(order, continues=True)
  yield _Rounds(context, order.job, task, ends, process).run(addresses, env)


def visible_gpus(
  job: job_lib.Job,
  task: spec_lib.Task,
  addresses: Mapping[spec_lib.Task, str],
  assigned: Sequence[str] | None,
) -> dict[str, str]:
  """Returns the variable that has a task see its GPUs.

  Args:
    job: the job.
    task: the task.
    addresses: of all tasks.
    assigned: the GPUs that Spark has assigned to the task, if it does.

  Raises:
    ValueError: there are too few.
  """
  if assigned:
    env = {'CUDA_VISIBLE_DEVICES': ','.join(assigned)}
    return job.visible_gpus(task, place=0, env=env)
  hosts = {t: address.split(':')[0] for t, address in addresses.items()}
  return job.visible_gpus(
    task, place=job_lib.place(task, hosts), env=os.environ
  )


class _Rounds:
  """Runs a task's program while all tasks tell each other how they are."""

  def __init__(
    self,
    context: Any,
    job: job_lib.Job,
    task: spec_lib.Task,
    ends: ends_lib.Ends,
    process: task_process.TaskProcess,
  ) -> None:
    self._context = context
    self._tasks = job.tasks()
    self._task = task
    self._ends = ends
    self._process = process
    self._outcome: task_process.Outcome | None = None
    self._error: Exception | None = None
    self._was_stopped = False
    self._deadline: float | None = None

  def run(
    self, addresses: Mapping[spec_lib.Task, str], env: Mapping[str, str]
  ) -> End:
    """Runs the program to its end, and waits for those of all others."""
    thread = threading.Thread(
      target=self._run_program,
      args=(job_lib.cluster(addresses, 'Spark'), env),
      name='tfps-program',
    )
    thread.start()
    times = timeouts.current()
    try:
      while None in (said := self._say()).values():
        self._heed(said)
        began = time.monotonic()
        thread.join(times.spark_every_secs)
        if self._has_said:
          end = began + times.spark_every_secs
          time.sleep(max(0.0, end - time.monotonic()))
    finally:
      # Spark uses this process again.
      self._process.kill()
      thread.join(times.engine_end_secs)
    if self._error is not None:
      raise self._error
    assert self._outcome is not None
    return End(self._task, self._outcome, self._was_stopped)

  def _run_program(
    self, members: spec_lib.Cluster, env: Mapping[str, str]
  ) -> None:
    try:
      self._outcome = self._process.run(members, env)
    except Exception as error:  # raised by the joiner
      self._error = error
      self._outcome = task_process.Outcome(1, f'{error}\n')

  def _say(self) -> dict[spec_lib.Task, int | None]:
    """Tells all tasks this one's status, and returns those of all."""
    status = None
    if self._outcome is not None:
      status = 0 if self._was_stopped else self._outcome.status
    self._has_said = status is not None
    heard = map(json.loads, self._context.allGather(json.dumps(status)))
    return dict(zip(self._tasks, heard, strict=True))

  def _heed(self, said: Mapping[spec_lib.Task, int | None]) -> None:
    """Stops the program if another has failed, or its time is over."""
    if said[self._task] is not None:
      return
    has_failed = any(
      status for t, status in said.items() if t.job != job_lib.EVALUATOR
    )
    secs = self._ends.secs_left([t for t in said if said[t] is None])
    if secs is not None:  # less once an evaluator is done, too
      deadline = time.monotonic() + secs
      self._deadline = min(deadline, self._deadline or deadline)
    is_late = self._deadline is not None and time.monotonic() > self._deadline
    if (has_failed or is_late) and self._outcome is None:
      self._was_stopped = True
      self._process.stop()


def _own_folders() -> tuple[str, ...]:
  """Returns the executor's folders, where files are that Spark has sent."""
  import pyspark

  return (os.getcwd(), pyspark.SparkFiles.getRootDirectory())
