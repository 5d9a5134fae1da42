"""Supervises one task of a job on its machine, for engines that start tasks.

`python -m tfps.launch.task --max_restarts=3 -- python train.py --steps=1000`

The task is that of the environment, such as `TF_CONFIG` or a Slurm step. It is
started again after a status of 128 or more, and killed when its server no
longer answers. On SIGTERM it has `--grace_secs` to exit. It dies with this
process, however this process ends.

With `--log_dir`, its output is kept there, too, as in ps-0.log, behind that of
earlier runs. The first task that fails, but for those that were told to end,
leaves its name and status in a file `failure`, for engines that stop the
others: the status of these may hide it.

With `--secure_directory`, the command is that of an enclosure. It gets the
task's certificate of that folder, with which its server is probed, too.

With `--orders`, the environment, the folder and the command are read from
standard input, as a line of JSON. Each further line is a sign of life of the
launcher, or `stop`. When the input ends, or says nothing for
`Timeouts.launcher_silent_secs`, the task is stopped.
"""

import argparse
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import select
import signal
import sys
import threading

from tfps._compat import messages
from tfps._utils import ports
from tfps._utils import signals
from tfps._utils import timeouts
from tfps.cluster import resolver
from tfps.cluster import spec as spec_lib
from tfps.launch import supervisor as supervisor_lib
from tfps.launch import task_output
from tfps.security import config as security_lib
from tfps.security import enclosure

_FAILURE = 'failure'


@dataclasses.dataclass(frozen=True)
class Order:
  """Command, environment and folder, as a launcher sends them to a task.

  Attributes:
    args: program and arguments.
    env: variables that are added to the environment.
    folder: the working directory.
  """

  args: tuple[str, ...]
  env: Mapping[str, str]
  folder: str

  def line(self) -> bytes:
    """Returns the order as a line, which `parse` reads."""
    return json.dumps(dataclasses.asdict(self)).encode() + b'\n'

  @classmethod
  def parse(cls, line: bytes) -> 'Order':
    """Returns the order of a line.

    Args:
      line: as `line` returns it.

    Raises:
      ValueError: the line is no order.
    """
    try:
      fields = json.loads(line)
      return cls(tuple(fields['args']), fields['env'], fields['folder'])
    except (ValueError, KeyError, TypeError) as error:
      raise ValueError(f'The order {line[:80]!r} is not valid.') from error


def main(argv: Sequence[str] | None = None) -> int:
  """Runs a task to its end.

  Args:
    argv: options, `--` and the command; by default the command line's.

  Returns:
    The task's exit status, or 128 + n for signal n.
  """
  options = _parser().parse_args(argv)
  if options.free_ports:
    print(*(ports.pick() for _ in range(options.free_ports)))
    return 0
  if options.orders:
    # `stop` arrives as SIGTERM, which the command ssh may have had ignored.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
  try:
    order = _first_order() if options.orders else _own_order(options.command)
    os.chdir(order.folder)
    os.environ.update(order.env)
    return _supervise(order, resolver.resolve_cluster(), options)
  except (ValueError, OSError) as error:
    print(f'tfps.launch.task: {error}', file=sys.stderr)
    return 1


def _supervise(
  order: Order, cluster: spec_lib.Cluster, options: argparse.Namespace
) -> int:
  task = cluster.task
  assert task is not None  # as `resolve_cluster` has checked
  security = _security(task, options.secure_directory)
  own_env = security.env() if security else {}
  is_probed = task in cluster.tasks() and options.silent_secs
  served = {task: cluster.address(task)} if is_probed else {}
  with enclosure.called_through(served, security) as addresses:
    command = supervisor_lib.Command(
      task,
      order.args,
      {**os.environ, signals.REPEATS_VARIABLE: '1', **own_env},
      address=addresses.get(task, ''),
    )
    supervisor = supervisor_lib.Supervisor(
      [command],
      _output(task, options.log_dir),
      grace_secs=options.grace_secs,
      max_restarts=options.max_restarts,
      silent_secs=options.silent_secs,
    )
    if options.orders:
      threading.Thread(target=_heed, name='tfps-orders', daemon=True).start()
    status = supervisor.run()
  if options.log_dir and supervisor.failure:
    _leave_failure(options.log_dir, *supervisor.failure)
  return status


def _security(
  task: spec_lib.Task, folder: pathlib.Path | None
) -> security_lib.Security | None:
  if folder is None:
    return None
  return security_lib.Security.of_task(folder, task, '--secure_directory')


def _output(
  task: spec_lib.Task, folder: pathlib.Path | None
) -> task_output.TaskOutput:
  if folder is None:
    return task_output.TaskOutput([task], None)
  is_shown = functools.partial(messages.is_shown, env=os.environ)
  return task_output.TaskOutput([task], folder, is_shown=is_shown, appends=True)


def _leave_failure(
  folder: pathlib.Path, task: spec_lib.Task, status: int
) -> None:
  """Writes who failed, unless another task has been first."""
  with (
    contextlib.suppress(FileExistsError),
    open(folder / _FAILURE, 'x') as file,
  ):
    file.write(f'{task} {status}\n')


def _own_order(command: Sequence[str]) -> Order:
  args = tuple(command[1:] if command[:1] == ['--'] else command)
  if not args:
    raise ValueError('no command. Give it after --.')
  return Order(args, {}, os.getcwd())


def _first_order() -> Order:
  """Returns the order on standard input; only its bytes are taken from there.

  Raises:
    ValueError: none comes in time, or it is not valid.
  """
  line = b''
  while not line.endswith(b'\n'):
    byte = _read(1)
    if not byte:
      raise ValueError('no order on standard input, which ended or was silent.')
    line += byte
  return Order.parse(line)


def _heed() -> None:
  """Ends this process when the launcher says so, or is gone."""
  while (said := _read(4096)) and b'stop' not in said:
    pass
  os.kill(os.getpid(), signal.SIGTERM)


def _read(num_bytes: int) -> bytes:
  """Returns bytes from standard input; none if it has ended or is silent."""
  patience = timeouts.current().launcher_silent_secs
  ready, _, _ = select.select([0], [], [], patience)
  return os.read(0, num_bytes) if ready else b''


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog='python -m tfps.launch.task',
    description='Supervises one task of a job.',
    allow_abbrev=False,
  )
  parser.add_argument('--max_restarts', type=int, default=0)
  parser.add_argument('--silent_secs', type=float, default=10.0)
  parser.add_argument('--grace_secs', type=float, default=10.0)
  parser.add_argument('--log_dir', type=pathlib.Path)
  parser.add_argument('--secure_directory', type=pathlib.Path)
  parser.add_argument('--orders', action='store_true')
  parser.add_argument(
    '--free_ports', type=int, help='print as many free ports, and end'
  )
  parser.add_argument('command', nargs=argparse.REMAINDER)
  return parser


if __name__ == '__main__':
  sys.exit(main())
