"""Starts processes of a cluster's tasks, forked where that is possible."""

from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import subprocess
import sys
from typing import IO

from tfps._utils import processes
from tfps.cluster import spec as spec_lib
from tfps.launch import forked_process

# The command of a task that serves, as `tfps.serve` does.
SERVE = (sys.executable, '-m', 'tfps.server')

Process = subprocess.Popen[bytes] | forked_process.Forked


def serves(command: Sequence[str]) -> bool:
  """Returns whether a command is that of servers."""
  return tuple(command) == SERVE


def numbers(
  commands: Mapping[str, Sequence[str]], num_workers: int, num_ps: int
) -> dict[str, int]:
  """Returns the number of tasks of each job.

  A cluster has a chief if its workers serve or a command is for the chief.

  Args:
    commands: the command of each job's tasks.
    num_workers: number of workers.
    num_ps: number of ps.
  """
  found = {'ps': num_ps} if num_ps else {}
  found['worker'] = num_workers
  if serves(commands['worker']) or 'chief' in commands:
    found['chief'] = 1
  return found


def check_trains(commands: Mapping[str, Sequence[str]]) -> None:
  """Checks that a task on a host trains; see `ProcessCluster`.

  Args:
    commands: the command of each job's tasks.

  Raises:
    ValueError: none of them trains.
  """
  if serves(commands['worker']) and 'chief' not in commands:
    raise ValueError(
      'ProcessCluster: no task trains. With on_hosts, give a command for the '
      'chief, or for the workers: this process is on no host.'
    )


def start(
  command: Sequence[str],
  *,
  env: Mapping[str, str],
  log: IO[bytes],
  preload: tuple[str, ...],
  timeout_secs: float,
) -> Process:
  """Starts a command, forked from a process with its imports if possible.

  The command of servers is always forked.

  Args:
    command: the command.
    env: its environment.
    log: the file for its output.
    preload: modules to import before programs are forked; without any, they
      are not.
    timeout_secs: how long the fork server may take to start.
  """
  forks = preload and forked_process.can_start(command)
  if serves(command) or forks:
    # Unforked, a program that lacks a module fails with a better message.
    with contextlib.suppress(ImportError):
      return forked_process.spawn(
        command,
        env=env,
        stdout=log,
        preload=() if serves(command) else preload,
        timeout_secs=timeout_secs,
      )
  return processes.spawn(command, env=env, stdout=log)


def keep_servers(
  cluster: spec_lib.Cluster, servers: Sequence[spec_lib.Task]
) -> None:
  """Cancels the end of training that a chief in this process has announced.

  Args:
    cluster: the cluster, with the chief's task.
    servers: the tasks that serve.
  """
  # Imported late: it imports TensorFlow, which loading the plugin must not.
  from tfps.server import registration

  assert cluster.task is not None
  registration.Registration(
    cluster,
    cluster.task,
    cluster.address(cluster.task),
    chief=True,
    servers=servers,
  ).expect()
