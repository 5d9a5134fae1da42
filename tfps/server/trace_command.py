"""Command `tfps trace`, which records what all tasks of a running job execute.

It profiles all tasks at once over the ports of their servers, writes one file
that Perfetto (ui.perfetto.dev) and chrome://tracing show, and prints the shares
of the time that each task computes, sends and waits.
"""

import argparse
from collections.abc import Mapping
from collections.abc import Sequence
import gzip
import json
import os
import pathlib
import sys
import time

import grpc

from tfps._compat import lazy_keras
from tfps._utils import option_types
from tfps._utils import threads
from tfps._utils import timeouts
from tfps.cluster import spec as spec_lib
from tfps.monitor import shares as shares_lib
from tfps.monitor import timeline
from tfps.server import dump_command

_LONGEST = 60.0  # trace, in seconds
_MAX_AT_ONCE = 64
# Where TensorBoard looks for profiles, below the folder of its logs.
_PROFILES = pathlib.Path('plugins', 'profile')


def main(argv: Sequence[str] | None = None) -> int:
  """Writes a trace.

  Args:
    argv: the options; by default the command line's.

  Returns:
    0 if all tasks are in it, otherwise 1.

  Raises:
    SystemExit: with status 2, after a message, for wrong options.
  """
  options = _parser().parse_args(argv)
  try:
    known = dump_command.known_tasks(options.address, os.environ)
    addresses, secs = _plan(known, options)
  except ValueError as error:
    print(f'tfps trace: {error}', file=sys.stderr)
    return 1
  profiles, failed = _profile_all(addresses, secs, options.timeout_secs)
  for task, why in failed.items():
    print(f'tfps trace: {task} has no profile: {why}', file=sys.stderr)
  if not profiles:
    return 1
  names = {str(task): profile for task, profile in profiles.items()}
  sent = timeline.transfers(names)
  try:
    with gzip.open(options.output, 'wt') as file:
      json.dump(timeline.trace(names, sent), file)
    print(f'{options.output}: {secs:.3g} s of {", ".join(names)}')
    if options.log_dir:
      print(f'{_keep(profiles, options.log_dir)}: for TensorBoard')
  except OSError as error:
    print(f'tfps trace: {error}', file=sys.stderr)
    return 1
  print(_table(shares_lib.shares(names, sent)))
  return int(bool(failed))


def _plan(
  known: Mapping[spec_lib.Task, str], options: argparse.Namespace
) -> tuple[Mapping[spec_lib.Task, str], float]:
  """Returns the addresses of all tasks, and for how long to profile them."""
  # Imported late, as TensorFlow is: wrong options are named at once.
  lazy_keras.import_tensorflow()
  from tfps.server import job_table

  table = job_table.JobTable(known, timeout_secs=options.timeout_secs)
  table.read()
  if options.secs:
    return table.addresses, options.secs
  rate_secs = timeouts.current().trace_rate_secs
  time.sleep(rate_secs)
  rows = table.read()
  rate = sum(row.steps_per_sec or 0.0 for row in rows)
  if not rate:
    silent = [f'{row.task} {row.state}' for row in rows if not row.is_alive]
    if len(silent) == len(rows):
      raise ValueError(f'no task can be profiled: {", ".join(silent)}.')
    raise ValueError(
      f'no task has done a step in {rate_secs:g} s, so the time of '
      f'--steps={options.steps} is not known: give --secs.'
    )
  secs = options.steps / rate
  if secs > _LONGEST:
    raise ValueError(
      f'--steps={options.steps} take {secs:.0f} s at {rate:.3g} steps/s, more '
      f'than the {_LONGEST:g} s that a trace may have: give fewer, or --secs.'
    )
  return table.addresses, secs


def _profile_all(
  addresses: Mapping[spec_lib.Task, str], secs: float, timeout_secs: float
) -> tuple[dict[spec_lib.Task, timeline.Profile], dict[spec_lib.Task, str]]:
  """Returns the profiles of tasks, and why others have none."""
  from tfps._compat import profiler

  def profile(address: str) -> timeline.Profile | str:
    try:
      found = profiler.profile(address, secs=secs, timeout_secs=timeout_secs)
    except grpc.RpcError as error:
      return str(error.details())
    return found if found.events else 'nothing was executed'

  found = dict(
    zip(
      addresses,
      threads.map_all(
        'tfps-trace', profile, addresses.values(), at_once=_MAX_AT_ONCE
      ),
      strict=True,
    )
  )
  failed = {task: why for task, why in found.items() if isinstance(why, str)}
  profiles = {
    task: each
    for task, each in sorted(found.items())
    if not isinstance(each, str)
  }
  return profiles, failed


def _table(
  shares: Mapping[str, Mapping[shares_lib.Part, float]],
) -> str:
  """Returns the shares of all tasks, a line each."""
  if not shares:
    return 'No tensor that a task sent is known as a whole: trace for longer.'
  heads = [part.value for part in shares_lib.Part]
  width = max(map(len, ('% of the time', *shares)))
  lines = [f'{"% of the time":{width}}  ' + '  '.join(heads)]
  lines += [
    f'{task:{width}}  '
    + '  '.join(
      f'{100 * share:{len(head)}.0f}'
      for head, share in zip(heads, by_part.values(), strict=True)
    )
    for task, by_part in shares.items()
  ]
  return '\n'.join(lines)


def _keep(
  profiles: Mapping[spec_lib.Task, timeline.Profile], log_dir: str
) -> pathlib.Path:
  """Writes profiles as TensorBoard reads them, and returns their folder."""
  folder = (
    pathlib.Path(log_dir) / _PROFILES / time.strftime('%Y_%m_%d_%H_%M_%S')
  )
  folder.mkdir(parents=True, exist_ok=True)
  for task, profile in profiles.items():
    name = f'{task.job}-{task.index}.xplane.pb'
    (folder / name).write_bytes(profile.xspace)
  return folder


def _length(text: str) -> float:
  """Returns the number of seconds of a trace; see `option_types`."""
  secs = option_types.positive_seconds(text)
  if secs > _LONGEST:
    raise argparse.ArgumentTypeError(
      f'{text!r} is more than the {_LONGEST:g} s that a trace may have'
    )
  return secs


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog='tfps trace',
    description='Records what all tasks of a running job execute, in one file '
    'for ui.perfetto.dev or chrome://tracing.',
    epilog='Status: 0 if all tasks are in the trace; 1 if not; 2 for a wrong '
    'option.',
    allow_abbrev=False,
  )
  dump_command.add_job_options(parser)
  length = parser.add_mutually_exclusive_group()
  length.add_argument(
    '--steps',
    type=option_types.positive,
    default=20,
    metavar='N',
    help='about how many steps of all workers together (default: 20)',
  )
  length.add_argument(
    '--secs',
    type=_length,
    metavar='SECS',
    help=f'for how long, whatever the steps (at most {_LONGEST:g})',
  )
  parser.add_argument(
    '--output',
    default='trace.json.gz',
    metavar='FILE',
    help='the file to write, compressed by gzip (default: trace.json.gz)',
  )
  parser.add_argument(
    '--log_dir',
    default='',
    metavar='DIR',
    help="keeps the profiles in a folder of TensorBoard's logs, too",
  )
  return parser


if __name__ == '__main__':
  sys.exit(main())
