"""Runs a job in a Spark cluster, and reads a DataFrame from there.

```python
import tfps.launch.spark

rows = tfps.launch.spark.write(dataframe, '/shared/rows')
result = tfps.launch.spark.run(spark, train, rows, num_workers=2, num_ps=1)
```

The executors need what the function needs, with this package.
"""

from collections.abc import Callable
from collections.abc import Mapping
import functools
import os
import pathlib
import pickle
import secrets
import sys
import time
from typing import Any

from tfps import errors
from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib
from tfps.launch import ends as ends_lib
from tfps.launch import function as function_lib
from tfps.launch import job as job_lib
from tfps.launch import spark_rows
from tfps.launch import spark_task
from tfps.launch import task_process

Rows = spark_rows.Rows
read = spark_rows.read
write = spark_rows.write

_PICKLER = 'pyspark.cloudpickle'


def run(
  spark: Any,
  function: Callable[..., object] | str,
  *args: Any,
  num_workers: int = 1,
  num_ps: int = 1,
  num_chiefs: int = 1,
  num_evaluators: int = 0,
  env: Mapping[str, str] | None = None,
  gpus_per_worker: int | None = None,
  max_restarts: int = 3,
  grace_secs: float = 10.0,
  log_dir: str | os.PathLike[str] | None = None,
  secure_directory: str | os.PathLike[str] | None = None,
  timeout_secs: float = 20.0,
  evaluator_secs: float = 600.0,
) -> Any:
  """Runs a function as all tasks of a cluster, and waits for their end.

  The tasks are those of one barrier stage, so that they all run at once, each
  in one slot of an executor.

  Args:
    spark: a `SparkSession`.
    function: called by each task with `args`; or the path of a program, or
      '-m', with arguments.
    *args: the arguments.
    num_workers: number of workers.
    num_ps: number of ps.
    num_chiefs: 0 for between-graph programs whose chief is worker:0.
    num_evaluators: 1 for a task that evaluates checkpoints.
    env: variables that are added to each task's environment.
    gpus_per_worker: GPUs that each worker sees, of those that Spark assigns to
      its task, if it does; other tasks see none.
    max_restarts: how often each task's program is started again after a status
      of 128 or more.
    grace_secs: seconds that a task has to exit after SIGTERM.
    log_dir: a folder, on each executor's machine, for the output of its tasks,
      as ps-0.log; by default only Spark keeps it, with the executor's.
    secure_directory: a folder, at the same path on all machines, with the
      certificates that `tfps certs` has made for the tasks, which are then
      connected by mutual TLS.
    timeout_secs: how long to wait until all tasks have slots.
    evaluator_secs: how long the evaluator may go on once training is done.

  Returns:
    What the function returned on the chief; None for a program.

  Raises:
    ValueError: an argument or a certificate is wrong.
    ImportError: PySpark is not installed.
    errors.DeadlineError: there are too few slots.
    errors.TaskFailedError: a task failed.
  """
  call, program = _call(function, args)
  job = job_lib.Job(
    program,
    num_workers=num_workers,
    num_ps=num_ps,
    num_chiefs=num_chiefs,
    num_evaluators=num_evaluators,
    env=dict(env or {}),
    gpus_per_worker=gpus_per_worker,
    max_restarts=max_restarts,
    grace_secs=grace_secs,
    log_dir=pathlib.Path(log_dir).absolute() if log_dir else None,
    certificates=(
      pathlib.Path(secure_directory).absolute() if secure_directory else None
    ),
  )
  job.check_certificates()
  context = _context(spark)
  order = task_process.Order(
    job, spec_lib.Task('ps', 0), call, (os.getcwd(),), has_prefixes=True
  )
  ends = ends_lib.Ends.of(job, evaluator_secs=evaluator_secs)
  result = _result(_run(context, order, ends, timeout_secs), ends.chief)
  return pickle.loads(result) if result else None


def _call(
  function: Callable[..., object] | str, args: tuple[Any, ...]
) -> tuple[function_lib.Call | None, tuple[str, ...]]:
  """Returns a function's call, or None, and the program that runs.

  Raises:
    ValueError: it is neither a function nor a program.
  """
  if callable(function):
    _import()
    call = function_lib.Call.of(function, args, pickler=_PICKLER)
    return call, ('-m', function_lib.MODULE)
  words = (function, *args)
  wrong = [word for word in words if not isinstance(word, str)]
  if wrong or not function:
    raise ValueError(
      f'{wrong[0] if wrong else function!r} is neither a function nor a word '
      "of a program. Give a function, or words such as 'train.py', '--steps=1'."
    )
  return None, words


def _import() -> Any:
  """Returns the module pyspark.

  Raises:
    ImportError: it is not installed.
  """
  try:
    import pyspark
  except ImportError as error:
    raise ImportError(
      f"{error}. Install the extra 'spark': pip install 'tfps[spark]'."
    ) from error
  return pyspark


def _context(spark: Any) -> Any:
  """Returns the SparkContext of a session.

  Raises:
    ValueError: it has none.
  """
  pyspark = _import()
  try:
    context = getattr(spark, 'sparkContext', spark)
  except Exception as error:  # Spark Connect's own
    raise ValueError(
      f'spark={spark!r} has no SparkContext, as barrier stages need: {error}'
    ) from error
  if not isinstance(context, pyspark.SparkContext):
    raise ValueError(
      f'spark={spark!r} is no SparkSession. Give that of '
      'SparkSession.builder.getOrCreate().'
    )
  return context


def _run(
  context: Any,
  order: task_process.Order,
  ends: ends_lib.Ends,
  timeout_secs: float,
) -> list[spark_task.End]:
  """Runs the barrier stage and returns its tasks' ends."""
  number = len(order.job.tasks())
  _wait_for_slots(context, number, timeout_secs)
  stage = (
    context.parallelize(range(number), number)
    .barrier()
    .mapPartitions(functools.partial(spark_task.run, order, ends))
    # Spark starts a barrier stage again only if a shuffle follows it.
    .repartition(1)
  )
  _say(
    f'Starting {", ".join(map(str, order.job.tasks()))} in a barrier stage of '
    f'{context.applicationId}.'
  )
  group = f'tfps-{secrets.token_hex(4)}'
  found: list[list[spark_task.End] | Exception] = []

  def collect() -> None:
    context.setJobGroup(group, 'tfps', interruptOnCancel=True)
    try:
      found.append(stage.collect())
    except Exception as error:  # raised by the joiner
      found.append(error)

  thread = _import().InheritableThread(target=collect, name='tfps-spark')
  thread.daemon = True
  thread.start()
  try:
    _wait(context, group, thread, number, timeout_secs)
  finally:
    if thread.is_alive():
      context.cancelJobGroup(group)
      thread.join(timeouts.current().engine_end_secs)
  if isinstance(found[0], Exception):
    raise found[0]
  return found[0]


def _wait(
  context: Any, group: str, thread: Any, number: int, timeout_secs: float
) -> None:
  """Waits for the end of a stage, and before that for its start.

  Raises:
    errors.DeadlineError: its tasks got no slots in time.
  """
  deadline = time.monotonic() + timeout_secs
  has_begun = False
  while thread.is_alive():
    thread.join(timeouts.current().wake_secs)
    has_begun = has_begun or _is_active(context, group)
    if not has_begun and time.monotonic() > deadline and thread.is_alive():
      raise errors.DeadlineError(
        f'{number} tasks of a barrier stage need as many free slots at once, '
        f'and Spark found none for {timeout_secs:g} seconds. It has '
        f'{_num_slots(context)} slots: other jobs of the application use them.'
      )


def _is_active(context: Any, group: str) -> bool:
  tracker = context.statusTracker()
  jobs = filter(None, map(tracker.getJobInfo, tracker.getJobIdsForGroup(group)))
  stages = [tracker.getStageInfo(i) for each in jobs for i in each.stageIds]
  return any(
    stage.numActiveTasks or stage.numCompletedTasks
    for stage in stages
    if stage is not None
  )


def _wait_for_slots(context: Any, number: int, timeout_secs: float) -> None:
  """Waits until executors have enough slots, for which Spark waits long.

  Raises:
    errors.DeadlineError: they have not.
  """
  deadline = time.monotonic() + timeout_secs
  while (slots := _num_slots(context)) < number:
    if time.monotonic() > deadline:
      executors = context._jsc.sc().getExecutorMemoryStatus().size() - 1
      raise errors.DeadlineError(
        f'{number} tasks of a barrier stage need {number} slots at once, and '
        f'Spark has {slots} on {executors} executors after {timeout_secs:g} '
        'seconds. Give it more by spark.executor.instances or '
        'spark.executor.cores, or ask for less by num_workers or num_ps.'
      )
    time.sleep(timeouts.current().wake_secs)


def _num_slots(context: Any) -> int:
  # Private in Scala, but the number that Spark itself compares with.
  jvm = context._jsc.sc()
  profile = jvm.resourceProfileManager().defaultResourceProfile()
  return int(jvm.maxNumConcurrentTasks(profile))


def _result(ends: list[spark_task.End], chief: spec_lib.Task) -> bytes | None:
  """Returns the pickled result of the chief's function.

  Raises:
    errors.TaskFailedError: a task failed.
  """
  failed = [e for e in ends if e.outcome.status and not e.was_stopped]
  # An evaluator's failure counts if no other task failed.
  for end in sorted(failed, key=lambda e: e.task.job == job_lib.EVALUATOR):
    raise end.outcome.error(end.task)
  (result,) = (end.outcome.result for end in ends if end.task == chief)
  return result


def _say(text: str) -> None:
  print(f'[launch] {text}', file=sys.stderr, flush=True)
