"""Runs a job on several hosts, whose tasks are started by ssh.

`tfps launch --hosts=h1:3,h2:2 --num_workers=2 --num_ps=2 train.py`

Every host has this Python, the program and the working directory at the same
paths, and answers ssh without a password.
"""

import argparse
import collections
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import os
import pathlib
import re
import shlex
import socket
import subprocess
import sys

from tfps._utils import ports
from tfps._utils import threads
from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib
from tfps.launch import job as job_lib
from tfps.launch import local
from tfps.launch import over_ssh
from tfps.launch import supervisor as supervisor_lib

# 'h1', 'h1:2', and in files also 'h1 slots=2' with 'max_slots=4' behind it.
_HOST = re.compile(
  r'(?P<name>[^\s:=]+)(?:(?::|\s+slots\s*=\s*)(?P<slots>[1-9][0-9]*))?'
  r'(?:\s+max[-_]slots\s*=\s*[0-9]+)?'
)
_AT_ONCE = 64  # connections by ssh
_LOCAL = ('localhost', '127.0.0.1', '::1')


@dataclasses.dataclass(frozen=True)
class Host:
  """A host and the number of tasks that it may run.

  Attributes:
    name: as ssh and the other hosts know it.
    slots: how many tasks it may run.
  """

  name: str
  slots: int

  def is_this(self) -> bool:
    """Returns whether it is this machine, which needs no ssh."""
    return self.name in (*_LOCAL, socket.gethostname(), socket.getfqdn())


def add_options(parser: argparse.ArgumentParser) -> None:
  """Adds this engine's options."""
  group = parser.add_argument_group('hosts')
  group.add_argument(
    '--hosts',
    metavar='H1:N1,H2:N2',
    help='hosts, and how many tasks each may run (by default 1), as of mpirun '
    'and horovodrun; stands for --engine=hosts',
  )
  group.add_argument(
    '--hostfile',
    metavar='FILE',
    help='the same as lines such as `h1 slots=2` or `h1:2`',
  )
  group.add_argument(
    '--ssh',
    default='ssh',
    metavar='COMMAND',
    help="the command ssh and its options, such as 'ssh -p 2222'",
  )


def start(job: job_lib.Job, options: argparse.Namespace) -> int:
  """Runs a job's tasks on hosts to their end.

  Args:
    job: the job.
    options: the launcher's, see `command`.

  Returns:
    The exit status, as `local.start` does; 255 if a connection was lost.

  Raises:
    ValueError: an option is wrong, there are too few slots, or a host does not
      answer or lacks what it needs.
  """
  if options.preload:
    raise ValueError('--preload forks tasks on this machine; leave it out.')
  placed = place(job.tasks(), _hosts(options))
  ssh = _ssh(options.ssh)
  cluster = _cluster(placed, {} if options.dry_run else _ports(ssh, placed))
  envs = {task: _env(job, task, placed) for task in placed}
  if options.dry_run:
    for task, host in placed.items():
      by_hand = local.by_hand(cluster.with_task(task), job, envs[task])
      print(by_hand.replace('\n', f' on {host.name}\n', 1))
    return 0

  def command(
    task: spec_lib.Task, env: Mapping[str, str]
  ) -> supervisor_lib.Command:
    host = placed[task]
    args = job.command()
    if not host.is_this():
      module = [sys.executable, '-m', 'tfps.launch.over_ssh']
      grace_secs, given = f'{job.grace_secs:g}', shlex.join(job.env)
      args = (*module, options.ssh, host.name, grace_secs, given, *args)
    return supervisor_lib.Command(
      task, args, {**os.environ, **envs[task], **env}
    )

  # A task is stopped by its own host; what it writes last comes by ssh.
  secs = job.grace_secs + timeouts.current().told_end_secs
  patient = dataclasses.replace(job, grace_secs=secs)
  return local.supervise(patient, options, cluster, command)


def _ssh(text: str) -> list[str]:
  try:
    words = shlex.split(text)
  except ValueError:  # a quote is not closed
    words = []
  if not words:
    raise ValueError(
      f'--ssh={text!r} is no command. Give ssh and its options, quoted as for '
      'a shell.'
    )
  return words


def parse_hosts(text: str) -> list[Host]:
  """Returns the hosts of a list such as 'h1:2,h2'.

  Args:
    text: the list.

  Raises:
    ValueError: it names no host, or one twice, or is malformed.
  """
  return _parsed([part.strip() for part in text.split(',')], f'--hosts={text}')


def parse_hostfile(path: pathlib.Path) -> list[Host]:
  """Returns the hosts of a file with lines such as 'h1 slots=2' or 'h1:2'.

  Args:
    path: of the file; what follows # on a line is a comment.

  Raises:
    ValueError: the file cannot be read, or is malformed as a list may be.
  """
  try:
    text = path.read_text()
  except (OSError, UnicodeDecodeError) as error:
    raise ValueError(f'--hostfile={path}: {error}') from error
  lines = [line.partition('#')[0].strip() for line in text.splitlines()]
  return _parsed([line for line in lines if line], f'--hostfile={path}')


def place(
  tasks: Sequence[spec_lib.Task], hosts: Sequence[Host]
) -> dict[spec_lib.Task, Host]:
  """Assigns tasks to hosts.

  The ps are dealt to the hosts in turn, because each has about as much traffic
  as all workers together. All other tasks fill the hosts in order.

  Args:
    tasks: the tasks.
    hosts: the hosts.

  Returns:
    The host of each task, in the order of the tasks.

  Raises:
    ValueError: there are more tasks than slots.
  """
  left = {host: host.slots for host in hosts}
  if len(tasks) > sum(left.values()):
    slots = ', '.join(f'{host.name}:{host.slots}' for host in hosts)
    raise ValueError(
      f'{", ".join(map(str, tasks))} are {len(tasks)} tasks, and the hosts '
      f'have {sum(left.values())} slots: {slots}. Give hosts more, as in '
      f'{hosts[0].name}:{len(tasks)}.'
    )
  placed: dict[spec_lib.Task, Host] = {}
  for task in sorted(tasks, key=lambda task: task.job != 'ps'):
    free = [host for host in hosts if left[host]]
    if task.job == 'ps':  # so far, all that is placed are ps
      free.sort(key=list(placed.values()).count)
    placed[task] = free[0]
    left[free[0]] -= 1
  return {task: placed[task] for task in tasks}


def _hosts(options: argparse.Namespace) -> list[Host]:
  if bool(options.hosts) == bool(options.hostfile):
    raise ValueError('--engine=hosts needs either --hosts or --hostfile.')
  if options.hosts:
    return parse_hosts(options.hosts)
  return parse_hostfile(pathlib.Path(options.hostfile))


def _parsed(parts: Sequence[str], source: str) -> list[Host]:
  hosts: list[Host] = []
  for part in parts:
    match = _HOST.fullmatch(part)
    # What begins with a dash would be an option of ssh.
    if not match or part.startswith('-'):
      raise ValueError(
        f'{source}: {part!r} is not a host and the number of its tasks. Write '
        'it as in h1:2.'
      )
    hosts.append(Host(match['name'], int(match['slots'] or 1)))
  names = [host.name for host in hosts]
  if not hosts or len(set(names)) < len(names):
    raise ValueError(f'{source}: name at least one host, and each once.')
  if len(names) > 1 and (near := set(names) & set(_LOCAL)):
    raise ValueError(
      f'{source}: other hosts do not reach this one as {", ".join(near)}. '
      'Give its name in the network.'
    )
  return hosts


def _env(
  job: job_lib.Job,
  task: spec_lib.Task,
  placed: Mapping[spec_lib.Task, Host],
) -> dict[str, str]:
  """Returns what a task's environment has besides this process' own."""
  # This machine's GPUs say nothing of another's.
  env = os.environ if placed[task].is_this() else {}
  gpus = job.visible_gpus(task, place=job_lib.place(task, placed), env=env)
  return {
    **job.added_env(),
    **job.ports_env(task),
    **job.security_env(task),
    **gpus,
  }


def _cluster(
  placed: Mapping[spec_lib.Task, Host],
  free_ports: Mapping[Host, list[str]],
) -> spec_lib.Cluster:
  """Returns the addresses of tasks; with port 0 on hosts without any."""
  left = {host: list(free_ports.get(host, ())) for host in placed.values()}
  addresses = {
    task: f'{host.name}:{left[host].pop() if left[host] else 0}'
    for task, host in placed.items()
  }
  return job_lib.cluster(addresses, 'launch')


def _ports(
  ssh: Sequence[str], placed: Mapping[spec_lib.Task, Host]
) -> dict[Host, list[str]]:
  """Returns free ports of each host, which so is known to be ready.

  Raises:
    ValueError: a host does not answer, or lacks what it needs.
  """
  numbers = collections.Counter(placed.values())
  answers = threads.map_all(
    'tfps-ssh',
    lambda host: _free_ports(ssh, host, numbers[host]),
    list(numbers),
    at_once=_AT_ONCE,
  )
  failed = [answer for answer in answers if isinstance(answer, str)]
  if failed:
    raise ValueError('\n'.join(failed))
  found = [answer for answer in answers if not isinstance(answer, str)]
  return dict(zip(numbers, found, strict=True))


def _free_ports(ssh: Sequence[str], host: Host, number: int) -> list[str] | str:
  """Returns free ports of a host, or what is wrong with it."""
  if host.is_this():
    return [str(ports.pick()) for _ in range(number)]
  command = over_ssh.remote(
    ssh, host.name, options=[f'--free_ports={number}'], env=os.environ
  )
  secs = timeouts.current().ssh_secs
  try:
    done = subprocess.run(
      command,
      stdin=subprocess.DEVNULL,
      capture_output=True,
      text=True,
      timeout=secs,
    )
  except subprocess.TimeoutExpired:
    return (
      f'{host.name} did not answer {ssh[0]} within {secs:g} seconds. Check '
      'that it is up, or leave it out.'
    )
  except OSError as error:
    return f'--ssh: {error}. Install it, or give another command.'
  found = done.stdout.split()[-number:]
  if done.returncode == 0 and len(found) == number:
    return found
  lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
  why = lines[-1] if lines else f'{ssh[0]} ended with {done.returncode}'
  return (
    f'{host.name}: {why}. Each host must answer ssh without a password, and '
    f'have {sys.executable} with tfps.'
  )
