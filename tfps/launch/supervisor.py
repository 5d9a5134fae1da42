"""Runs the tasks of a cluster as child processes until all are done.

Each task has a thread that copies its output and one that waits for its end.
The thread that called `run` takes all decisions, event by event.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import os
import pathlib
import queue
import signal
import threading
import time
from typing import IO
from typing import TypeAlias

from tfps._utils import processes
from tfps._utils import signals
from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib
from tfps.launch import forked_process
from tfps.launch import hang_detector
from tfps.launch import task_output

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ERROR_STATUS = 1  # of a Python program that an exception ends


@dataclasses.dataclass(frozen=True, eq=False)
class Command:
  """The command that runs a task.

  Attributes:
    task: the task.
    args: program and arguments.
    env: the whole environment.
    serves: whether it may be stopped once all tasks that do not serve are done.
    preload: modules to import before the task is forked; if empty, it is not
      forked.
    evaluates: whether it evaluates what the others train. It has time to end
      when they have, and if it fails, they go on.
    address: its server's address, if it is to be killed when the server no
      longer answers; otherwise ''.
  """

  task: spec_lib.Task
  args: tuple[str, ...]
  env: Mapping[str, str]
  serves: bool = False
  evaluates: bool = False
  preload: tuple[str, ...] = ()
  address: str = ''


@dataclasses.dataclass(frozen=True)
class _End:
  """The end of a task, with the status as a shell reports it."""

  command: Command
  status: int


_Process: TypeAlias = processes.Leader | forked_process.Forked
# The end of a command, a task that no longer answers, or a signal.
_Event: TypeAlias = Command | spec_lib.Task | signal.Signals


class Supervisor:
  """Runs tasks until they end: `status = Supervisor(...).run()`.

  Args:
    commands: one for each task.
    output: receives the tasks' output.
    grace_secs: how long tasks may take to exit: servers once the others are
      done, and all after SIGTERM.
    max_restarts: how many restarts there may be in all, of tasks that ended
      with a status of 128 or more (a retry may help), or with an error soon
      after another task was lost.
    silent_secs: seconds after which a task that no longer answers is killed.
    evaluator_secs: how long evaluators may take to exit once training is done.
    end_file: made when training is done, for the evaluators.
  """

  def __init__(
    self,
    commands: Sequence[Command],
    output: task_output.TaskOutput,
    *,
    grace_secs: float = 10.0,
    max_restarts: int = 0,
    silent_secs: float = 10.0,
    evaluator_secs: float = 600.0,
    end_file: pathlib.Path | None = None,
  ) -> None:
    self._commands = tuple(commands)
    self._output = output
    self._grace_secs = grace_secs
    self._restarts_left = max_restarts
    self._silent_secs = silent_secs
    self._evaluator_secs = evaluator_secs
    self._end_file = end_file
    self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
    self._running: dict[Command, _Process] = {}
    self._status: int | None = None  # the exit status, once decided
    self._cause: _End | None = None
    self._deadline: float | None = None
    self._since = ''  # how the deadline was set
    self._lost: tuple[spec_lib.Task, float] | None = None  # last, and when

  @property
  def failure(self) -> tuple[spec_lib.Task, int] | None:
    """The task that ended the job, with its status, or the last evaluator."""
    if self._cause is None:
      return None
    return self._cause.command.task, self._cause.status

  def run(self) -> int:
    """Starts the tasks and waits until they end.

    Call it from the main thread, because it handles signals.

    Returns:
      0, the status of the first task that failed, or 128 + n if this process
      received signal n. An evaluator's status counts if nothing else failed.

    Raises:
      ImportError: modules to preload cannot be imported.
      errors.DeadlineError: importing them took too long.
    """
    with (
      signals.reported(_heeded(), self._events.put),
      processes.GroupReaper() as groups,
      self._hang_detector(),
    ):
      self._groups = groups
      for command in self._commands:
        self._start(command)
      while self._running:
        self._react(self._next_event())
    self._explain()
    return self._status or (self._cause.status if self._cause else 0)

  def _hang_detector(self) -> hang_detector.HangDetector:
    addresses = {c.task: c.address for c in self._commands if c.address}
    return hang_detector.HangDetector(
      addresses, silent_secs=self._silent_secs, report=self._events.put
    )

  def _start(self, command: Command) -> None:
    reader, writer = os.pipe()
    with open(writer, 'wb', buffering=0) as output:
      process = _spawn(command, output)
    self._groups.add(process.pid)
    self._running[command] = process
    name = f'tfps-wait-{command.task}'
    waiter = threading.Thread(
      target=self._wait,
      args=(command, process, os.fdopen(reader, 'rb')),
      name=name,
      daemon=True,
    )
    waiter.start()

  def _wait(
    self, command: Command, process: _Process, output: IO[bytes]
  ) -> None:
    reader = threading.Thread(
      target=self._output.copy,
      args=(command.task, output),
      name=f'tfps-read-{command.task}',
      daemon=True,
    )
    reader.start()
    if isinstance(process, forked_process.Forked):
      process.wait()
    else:
      # `_reap` reaps it, so that its number cannot be reused before.
      process.has_ended(None)
    reader.join(timeouts.current().output_drain_secs)
    self._events.put(command)

  def _next_event(self) -> _Event | None:
    """Returns the next event; None if the deadline passes first."""
    if self._deadline is None:
      return self._events.get()
    try:
      return self._events.get(
        timeout=max(0.0, self._deadline - time.monotonic())
      )
    except queue.Empty:
      return None

  def _react(self, event: _Event | None) -> None:
    if event is None:
      self._on_deadline()
    elif isinstance(event, signal.Signals):
      self._on_signal(event)
    elif isinstance(event, spec_lib.Task):
      self._on_silence(event)
    else:
      end = self._reap(event)
      if self._status is None:  # else it was asked to exit
        self._on_end(end)

  def _reap(self, command: Command) -> _End:
    process = self._running.pop(command)
    self._groups.remove(process.pid)
    status = process.wait()
    return _End(command, status if status >= 0 else 128 - status)

  def _on_end(self, end: _End) -> None:
    if end.status == 0:
      self._end_if_done()
    elif self._may_restart(end):
      self._restart(end)
    elif end.command.evaluates:
      self._cause = end
      self._output.say(f'{_describe(end)}. The others go on.')
      self._end_if_done()
    else:
      self._cause = end
      others = ' Stopping the others.' if self._running else ''
      self._stop(end.status, f'{_describe(end)}.{others}')

  def _end_if_done(self) -> None:
    """Sets the deadline of the tasks that are left, if none of them trains."""
    left = self._running
    if all(command.serves for command in left):
      self._set_deadline(self._grace_secs, 'the others were')
    elif all(command.serves or command.evaluates for command in left):
      if self._end_file is not None:
        self._end_file.touch()
      self._set_deadline(self._evaluator_secs, 'training was')

  def _set_deadline(self, secs: float, what: str) -> None:
    """Sets the deadline, unless an earlier one is set."""
    deadline = time.monotonic() + secs
    if self._deadline is None or deadline < self._deadline:
      self._deadline = deadline
      self._since = f'{secs:g} seconds after {what} done'

  def _may_restart(self, end: _End) -> bool:
    done = self._deadline is not None  # only servers are left
    may_help = end.status >= 128 or self._lost_before(end) is not None
    return may_help and self._restarts_left > 0 and not done

  def _lost_before(self, end: _End) -> spec_lib.Task | None:
    """Returns another task whose recent loss may have caused an error."""
    if self._lost is None or end.status != _ERROR_STATUS:
      return None
    task, at = self._lost
    is_recent = time.monotonic() < at + timeouts.current().consequence_secs
    return task if is_recent and task != end.command.task else None

  def _restart(self, end: _End) -> None:
    lost = self._lost_before(end)
    cause = '' if lost is None else f', soon after {lost} was lost'
    if lost is None and not end.command.evaluates:
      self._lost = end.command.task, time.monotonic()
    self._restarts_left -= 1
    self._output.say(
      f'{_describe(end)}{cause}. Starting it again; '
      f'restarts left: {self._restarts_left}.'
    )
    self._start(end.command)

  def _on_signal(self, number: signal.Signals) -> None:
    if self._status is None:
      self._stop(128 + number, f'Stopping all tasks on {number.name}.')
    # Schedulers repeat SIGTERM, and SIGPIPE is sent for each line that is lost.
    elif number not in (signal.SIGTERM, signal.SIGPIPE):
      self._kill(f'Killing {self._names()} on another {number.name}.')

  def _on_silence(self, task: spec_lib.Task) -> None:
    for command, process in self._running.items():
      if command.task == task and self._status is None:
        self._output.say(
          f'{task} has not answered for {self._silent_secs:g} seconds. '
          'Killing it.'
        )
        processes.kill_group(process.pid, signal.SIGKILL)

  def _on_deadline(self) -> None:
    if self._status is None:
      self._stop(0, f'{self._names()} still running {self._since}. Stopping.')
    else:
      self._kill(
        f'Killing {self._names()}, still running {self._grace_secs:g} seconds '
        'after SIGTERM.'
      )

  def _stop(self, status: int, why: str) -> None:
    self._status = status
    self._output.say(why)
    self._send(signal.SIGTERM)
    self._deadline = time.monotonic() + self._grace_secs

  def _kill(self, why: str) -> None:
    self._output.say(why)
    self._send(signal.SIGKILL)
    self._deadline = None

  def _send(self, number: signal.Signals) -> None:
    for process in self._running.values():
      processes.kill_group(process.pid, number)

  def _names(self) -> str:
    return ', '.join(str(command.task) for command in self._running)

  def _explain(self) -> None:
    """Names the cause below the output that other tasks wrote while ending."""
    if not self._cause:
      return
    task = self._cause.command.task
    if path := self._output.path(task):
      self._output.say(
        f'{_describe(self._cause)}. Its last output ({path}):\n'
        f'{self._output.last_lines(task)}'
      )


def _spawn(command: Command, output: IO[bytes]) -> _Process:
  if not command.preload:
    return processes.spawn(command.args, env=command.env, stdout=output)
  return forked_process.spawn(
    command.args,
    env=command.env,
    stdout=output,
    preload=command.preload,
    timeout_secs=timeouts.current().start_secs,
  )


def describe(task: spec_lib.Task, status: int) -> str:
  """Returns a phrase that says how a task failed.

  Args:
    task: the task.
    status: its exit status, as a shell reports it.
  """
  names = {128 + number: f' ({number.name})' for number in signal.Signals}
  return f'{task} failed with status {status}{names.get(status, "")}'


def _describe(end: _End) -> str:
  return describe(end.command.task, end.status)


def _heeded() -> list[signal.Signals]:
  """Returns the signals that end the job, without ignored ones (nohup)."""
  wanted = [s for s in _SIGNALS if signal.getsignal(s) is not signal.SIG_IGN]
  return [*wanted, signal.SIGPIPE]  # Python ignores it by default
