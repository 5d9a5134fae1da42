"""Tasks of a job in a Ray cluster, from their start to their end.

Each task is an actor. It is opened, which gives its address; once all are open,
each runs its program. When Ray has started a lost actor again, it is opened
again, perhaps elsewhere, and runs the program with the addresses as they are.
"""

from collections.abc import Callable
from collections.abc import Mapping
import time
from typing import Any

from tfps import errors
from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib
from tfps.launch import ends as ends_lib
from tfps.launch import job as job_lib
from tfps.launch import task_process

_LOST = 137  # the status of a task that cannot be started again


class RayTasks:
  """Runs the actors of tasks: `result = RayTasks(...).run()`.

  Args:
    ray: the module, connected to a cluster.
    actors: a `ray_actor.TaskActor` for each task.
    ends: when the job ends.
    say: tells the user an event.
    may_move: whether the others reach a task that is back at another address.
  """

  def __init__(
    self,
    ray: Any,
    actors: Mapping[spec_lib.Task, Any],
    ends: ends_lib.Ends,
    say: Callable[[str], None],
    *,
    may_move: bool = True,
  ) -> None:
    self._ray = ray
    self._actors = dict(actors)
    self._ends = ends
    self._say = say
    self._may_move = may_move
    self._addresses: dict[spec_lib.Task, str] = {}
    self._opening: dict[Any, spec_lib.Task] = {}  # by Ray's reference
    self._open: set[spec_lib.Task] = set()  # they wait for the others
    self._running: dict[Any, spec_lib.Task] = {}  # by Ray's reference
    self._lost: dict[spec_lib.Task, float] = {}  # when to open them again
    self._done: dict[spec_lib.Task, task_process.Outcome] = {}
    self._deadline: float | None = None

  def run(self) -> bytes | None:
    """Runs all tasks to their end.

    Returns:
      The pickled result of the chief's function; None without a function.

    Raises:
      errors.TaskFailedError: a task failed; the others have been stopped.
      errors.DeadlineError: actors did not start in time.
    """
    try:
      for task in self._actors:
        self._start_opening(task)
      start_secs = timeouts.current().start_secs
      start = time.monotonic()
      while not self._is_over():
        self._react()
        if self._is_opening_all() and time.monotonic() > start + start_secs:
          raise errors.DeadlineError(
            f'The actors of {self._missing()} did not start within '
            f'{start_secs:g} seconds.'
          )
      return self._result()
    finally:
      self._stop()

  def _react(self) -> None:
    """Waits a moment for events, and heeds them."""
    self._reopen()
    refs = [*self._opening, *self._running]
    wake_secs = timeouts.current().wake_secs
    if not refs:
      time.sleep(wake_secs)
      return
    ended, _ = self._ray.wait(refs, timeout=wake_secs)
    for ref in ended:
      is_running = ref in self._running
      task = (self._running if is_running else self._opening).pop(ref)
      try:
        value = self._ray.get(ref)
      except self._ray.exceptions.RayActorError as error:
        self._on_loss(task, error, was_running=is_running)
        continue
      if is_running:
        self._on_end(task, value)
      else:
        self._on_open(task, value)

  def _start_opening(self, task: spec_lib.Task) -> None:
    earlier = self._addresses.get(task)
    self._opening[self._actors[task].open.remote(earlier)] = task

  def _reopen(self) -> None:
    """Opens lost actors; until Ray has started them again, they are lost."""
    now = time.monotonic()
    for task, due in list(self._lost.items()):
      if now >= due and task not in self._opening.values():
        self._lost[task] = now + timeouts.current().probe_every_secs
        self._start_opening(task)

  def _on_open(self, task: spec_lib.Task, address: str) -> None:
    if self._lost.pop(task, None) is not None:
      self._check_moved(task, address)
      self._say(f'{task} is back, at {address}.')
    self._addresses[task] = address
    self._open.add(task)
    if self._is_opening_all():
      return
    for ready in list(self._open):
      run = self._actors[ready].run.remote(self._tf_config())
      self._running[run] = ready
    self._open.clear()

  def _check_moved(self, task: spec_lib.Task, now: str) -> None:
    """Refuses another address than that with which the others have begun."""
    before = self._addresses.get(task)
    if not (self._may_move or self._is_opening_all() or before == now):
      raise task_process.Outcome(
        _LOST,
        f'It was at {before} and could only start again at {now}, to which '
        'nothing leads from the enclosures of the others.\n',
      ).error(task)

  def _is_opening_all(self) -> bool:
    return len(self._addresses) < len(self._actors)

  def _missing(self) -> str:
    missing = [task for task in self._actors if task not in self._addresses]
    return ', '.join(map(str, missing))

  def _tf_config(self) -> str:
    return job_lib.cluster(
      {task: self._addresses[task] for task in self._actors}, 'Ray'
    ).tf_config()

  def _on_loss(
    self, task: spec_lib.Task, error: Exception, *, was_running: bool
  ) -> None:
    if not isinstance(error, self._ray.exceptions.ActorUnavailableError):
      # Ray will not start it again.
      raise task_process.Outcome(_LOST, f'{error}\n').error(task) from error
    self._lost.setdefault(task, 0.0)
    if was_running:
      self._say(f'{task} was lost with its actor, which Ray starts again.')
      self._set_deadline_if_done()

  def _on_end(self, task: spec_lib.Task, outcome: task_process.Outcome) -> None:
    self._done[task] = outcome
    if outcome.status and task.job != job_lib.EVALUATOR:
      raise outcome.error(task)
    if outcome.status:
      self._say(f'{outcome.error(task)}The others go on.')
    self._set_deadline_if_done()

  def _is_over(self) -> bool:
    if self._deadline is not None and time.monotonic() > self._deadline:
      names = ', '.join(map(str, self._left()))
      self._say(f'Training is done. Stopping {names}.')
      return True
    return not self._left()

  def _left(self) -> list[spec_lib.Task]:
    return [task for task in self._actors if task not in self._done]

  def _set_deadline_if_done(self) -> None:
    """Sets the deadline of the tasks that are left, if none of them trains."""
    chief = self._ends.chief
    left = [t for t in self._left() if t == chief or t not in self._lost]
    secs = self._ends.secs_left(left)
    if secs is not None:
      deadline = time.monotonic() + secs
      self._deadline = min(deadline, self._deadline or deadline)

  def _result(self) -> bytes | None:
    for task, outcome in self._done.items():
      if outcome.status:  # an evaluator's: others end the job at once
        raise outcome.error(task)
    return self._done[self._ends.chief].result

  def _stop(self) -> None:
    """Stops what runs; actors that do not end in time are killed."""
    try:
      for task in self._running.values():
        self._actors[task].stop.remote()
      if self._running:
        self._ray.wait(
          list(self._running),
          num_returns=len(self._running),
          timeout=self._ends.grace_secs + timeouts.current().told_end_secs,
        )
    finally:
      for actor in self._actors.values():
        self._ray.kill(actor)
