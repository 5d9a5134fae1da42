"""What the conformance suite asks of an engine, and the job that one runs."""

import abc
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import dataclasses
import os
import pathlib
import re
import signal
import subprocess
import sys
from typing import Any
from typing import ClassVar

from tests.support import waiting

PROGRAM = pathlib.Path(__file__).parents[1] / 'programs' / 'flights.py'

_DRIVER_SECS = 280


@dataclasses.dataclass(frozen=True)
class Mistake:
  """What a user gets wrong, and what the error has to name.

  Attributes:
    what: the mistake, in the words of the table.
    sizes: more or fewer tasks than usual.
    words: options of the launcher.
    env: variables of the launcher's environment.
    complaint: a regular expression for the error.
  """

  what: str
  complaint: str
  words: Sequence[str] = ()
  sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
  env: Mapping[str, str] = dataclasses.field(default_factory=dict)

  def is_named(self, output: str) -> bool:
    """Returns whether the output of a job has the error."""
    return bool(re.search(self.complaint, output))


@dataclasses.dataclass(frozen=True)
class Request:
  """A job of a chief, workers and ps, as a test asks for it.

  Attributes:
    words: arguments of the program.
    num_workers: number of workers.
    num_ps: number of ps.
    max_restarts: how often tasks may be started again.
    options: of the launcher, as in a `Mistake`.
    env: variables of the launcher's environment, which the tasks get, too.
    program: what the tasks run.
  """

  words: Sequence[str]
  num_workers: int = 2
  num_ps: int = 2
  max_restarts: int = 0
  options: Sequence[str] = ()
  env: Mapping[str, str] = dataclasses.field(default_factory=dict)
  program: pathlib.Path = PROGRAM

  def command(self, *options: str) -> list[str]:
    """Returns the command `tfps launch`, with an engine's options."""
    return [
      *(sys.executable, '-m', 'tfps.launch'),
      f'--num_workers={self.num_workers}',
      f'--num_ps={self.num_ps}',
      f'--max_restarts={self.max_restarts}',
      *options,
      *self.options,
      str(self.program),
      *self.words,
    ]


class Running(abc.ABC):
  """A job that was started."""

  @abc.abstractmethod
  def wait(self, timeout_secs: float) -> int:
    """Returns the job's status, as its user gets it, once it has ended."""

  @abc.abstractmethod
  def output(self) -> str:
    """Returns what its user has seen of it so far."""

  @abc.abstractmethod
  def log(self, task: str) -> str:
    """Returns the log of a task such as 'ps:0', found where the README says."""

  @abc.abstractmethod
  def stop(self) -> None:
    """Ends the job in the way of the engine's users, and returns at once."""

  def says(self, task: str, pattern: str) -> bool:
    """Returns whether a line of a task's log matches a pattern."""
    return bool(re.search(pattern, self.log(task), re.MULTILINE))

  def wait_for(self, task: str, pattern: str, timeout_secs: float) -> None:
    """Waits until a line of a task's log matches a pattern."""
    waiting.until(
      lambda: self.says(task, pattern),
      timeout_secs=timeout_secs,
      say=lambda: f'{task}: {pattern} in {self.log(task)!r} of {self.output()}',
    )

  def pids(self, task: str) -> list[int]:
    """Returns the process ids that a task has had so far, the last one last."""
    found = re.findall(rf'^TASK {task} pid (\d+)$', self.log(task), re.M)
    return list(map(int, found))

  def kill(self, task: str) -> None:
    """Kills a task's process."""
    os.kill(self.pids(task)[-1], signal.SIGKILL)

  def number(self, what: str) -> float:
    """Returns the number that the chief printed behind a word."""
    (found,) = re.findall(rf'^{what} (\S+)$', self.log('chief:0'), re.M)
    return float(found)


class Engine(abc.ABC):
  """An engine, real and on this machine.

  Attributes:
    name: as in `tfps launch --engine=NAME`.
    failed: the status of a job whose task exits with 7.
    stopped: that of a job that `stop` ends.
  """

  name: ClassVar[str]
  failed: ClassVar[int] = 7
  stopped: ClassVar[int] = 128 + signal.SIGTERM

  @abc.abstractmethod
  def missing(self) -> str:
    """Returns what this machine lacks for the engine; '' if nothing."""

  @abc.abstractmethod
  @contextlib.contextmanager
  def up(self, folder: pathlib.Path) -> Iterator[None]:
    """Brings the engine up, with its state in a folder, for a while."""

  @abc.abstractmethod
  def run(self, folder: pathlib.Path, request: Request) -> Running:
    """Starts a job.

    Args:
      folder: for what the job leaves; two jobs may have the same.
      request: the job.
    """

  def start(
    self, folder: pathlib.Path, words: Sequence[str], **settings: Any
  ) -> Running:
    """Starts the job of `Request(words, **settings)`; see `run`."""
    return self.run(folder, Request(words, **settings))

  def secured_by(self, certificates: pathlib.Path) -> Sequence[str]:
    """Returns the options for mutual TLS with the certificates of a folder."""
    return [f'--secure_directory={certificates}']

  def mistakes(self) -> Sequence[Mistake]:
    """Returns what a user of this engine may get wrong."""
    return ()


class Launched(Running):
  """A job of `tfps launch`, or of another program that runs until its end.

  Args:
    command: the program and its arguments.
    folder: for its output, and the working directory.
    log_dir: the folder with the tasks' logs.
    env: variables that are added to the environment.
  """

  def __init__(
    self,
    command: Sequence[str],
    folder: pathlib.Path,
    log_dir: pathlib.Path,
    env: Mapping[str, str] | None = None,
  ) -> None:
    self._log_dir = log_dir
    self._output = folder / 'output'
    with self._output.open('wb') as output:
      self.process = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        preexec_fn=_heed_signals,
      )

  def wait(self, timeout_secs: float) -> int:
    try:
      status = self.process.wait(timeout_secs)
    except subprocess.TimeoutExpired:
      self.process.terminate()
      raise AssertionError(f'It still runs: {self.output()}') from None
    return status if status >= 0 else 128 - status

  def output(self) -> str:
    return self._output.read_text(errors='replace')

  def log(self, task: str) -> str:
    path = self._log_dir / f'{task.replace(":", "-")}.log'
    return path.read_text(errors='replace') if path.exists() else ''

  def stop(self) -> None:
    self.process.terminate()


def _heed_signals():
  # A suite in the background ignores SIGINT, and so do its processes.
  signal.signal(signal.SIGINT, signal.SIG_DFL)


def drive(
  program: pathlib.Path,
  *words: object,
  folder: pathlib.Path,
  env: Mapping[str, str] | None = None,
) -> str:
  """Runs a driver to its end, which has to be a good one; what it printed."""
  done = subprocess.run(
    [sys.executable, program, *map(str, words)],
    cwd=folder,
    env={**os.environ, **(env or {})},
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    timeout=_DRIVER_SECS,
  )
  assert done.returncode == 0, done.stdout
  return done.stdout
