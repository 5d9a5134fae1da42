"""Launched jobs of `tests/programs/monitored.py`, which a test watches."""

import os
import pathlib
import re
import signal

from tests.programs import monitored
from tests.support import commands
from tests.support import waiting
from tfps._utils import threads
from tfps.launch import command

_ROOT = pathlib.Path(__file__).parents[2]
_PROGRAM = str(_ROOT / 'tests' / 'programs' / 'monitored.py')


class Job:
  """A job that runs, and its folder."""

  def __init__(self, folder):
    self.folder = folder

  def let_go(self, name):
    """Lets the chief pass a gate, or end."""
    (self.folder / name).touch()

  def signal(self, task, number):
    """Sends a signal to a task; the launcher starts a killed one again."""
    pid = re.findall(r'^pid (\d+)$', self.output(task), re.M)[-1]
    os.kill(int(pid), number)

  def kill(self, task):
    self.signal(task, signal.SIGKILL)

  def output(self, task):
    path = self.folder / 'logs' / f'{task.replace(":", "-")}.log'
    return path.read_text() if path.exists() else ''

  def address(self, task):
    """Where a task that serves says that it is."""
    (address,) = re.findall(r'is ready at (\S+)\.$', self.output(task), re.M)
    return address

  def wait_for(self, condition):
    waiting.until(
      condition,
      timeout_secs=120,
      every_secs=0.2,  # each look takes time of the job's
      say=lambda: self.output('chief:0')[-3000:],
    )


def launch(check, folder, how, *options):
  """Launches a job, which is checked by another thread; returns its status.

  This thread is the launcher's, so that the tasks are forked by the process
  that other tests use.
  """
  job = Job(folder)

  def check_and_let_end():
    try:
      check(job)
    finally:
      for name in ('end', *(f'go-{gate}' for gate in monitored.GATES)):
        job.let_go(name)

  checking = threads.begin('check', check_and_let_end)
  status = command.main(
    [
      *('--num_workers=2', '--num_ps=2', '--max_restarts=1'),
      *(f'--preload={",".join(commands.PRELOAD)}', f'--log_dir={folder}/logs'),
      *(*options, _PROGRAM, str(folder), how),
    ]
  )
  checking.result()
  return status
