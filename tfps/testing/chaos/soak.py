"""Trains for a long time under random faults.

    python -m tfps.testing.chaos.soak --minutes=30 --seed=1

It reports the faults, and for each third of the time the steps, the longest
pause and the memory of each process, which should not grow.
"""

import argparse
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import pathlib
import sys
import tempfile
import time

from tfps import errors
from tfps._utils import timeouts
from tfps.testing import faults as faults_lib
from tfps.testing import process_cluster
from tfps.testing.chaos import disks
from tfps.testing.chaos import progress

_MODES = ['coordinator', 'fit', 'between_graph', 'between_graph_fit']
_NUM_PARTS = 3
_NO_END = 10**9  # steps
_DISK_BYTES = 2**24
_SIGTERM_STATUS = 143  # status on SIGTERM

# Times and resident megabytes, by task.
Memory = Mapping[str, Sequence[tuple[float, float]]]


def main(args: Sequence[str]) -> int:
  """Runs the soak.

  Args:
    args: the command line's options.

  Returns:
    0 if training continued to the end and the chief then exited on SIGTERM;
    otherwise 1.
  """
  options = _parser().parse_args(args)
  secs = 60.0 * options.minutes
  recovery_secs = timeouts.current().fault_recovery_secs
  with _folder(options.faults) as folder:
    command = (
      *(sys.executable, '-m', 'tfps.testing.chaos.campaign_task'),
      *(f'--mode={options.mode}', f'--steps={_NO_END}'),
      *(f'--directory={folder}', f'--replicas={options.replicas}'),
    )
    jobs = ['chief']
    if options.mode.startswith('between'):
      jobs.append('worker')
    with process_cluster.ProcessCluster(
      2,
      2,
      commands=dict.fromkeys(jobs, command),
      preload=['tensorflow'],
      log_dir=options.keep_logs,
    ) as cluster:
      cluster.wait_for_line(
        'chief', 0, 'at ', timeout_secs=timeouts.current().start_secs
      )
      began = time.time()
      faults = faults_lib.random_faults(
        cluster,
        seed=options.seed,
        until_secs=secs,
        every_secs=options.every_secs,
        kinds=options.faults,
        directory=folder,
      )
      with faults_lib.Faults(cluster, faults) as struck:
        memory = _watch(cluster, began + secs)
      has_resumed = _resumes(cluster, recovery_secs)
      try:
        cluster.terminate('chief', 0)
        status = cluster.wait('chief', 0, timeout_secs=recovery_secs)
      except errors.DeadlineError as error:
        print(error, file=sys.stderr)
        status = -1
      at = progress.numbers(cluster.log('chief', 0), 'at')
  for event in struck.events:
    print(f'{event.at - began:8.1f} s  {event.moment:<5}  {event.fault}')
  print(report(at, memory, began, secs))
  print(f'{len(faults)} faults; chief:0 has ended with status {status}.')
  if not has_resumed:
    print(f'Training has not resumed {recovery_secs:g} s after the last fault.')
  return 0 if status == _SIGTERM_STATUS and has_resumed else 1


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    'python -m tfps.testing.chaos.soak',
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument('--mode', choices=_MODES, default=_MODES[0])
  parser.add_argument('--minutes', type=float, default=30.0)
  parser.add_argument('--seed', type=int, default=1)
  parser.add_argument(
    '--every_secs', type=float, default=20.0, help='between two faults'
  )
  parser.add_argument(
    '--faults', nargs='+', default=['kill', 'hang', 'freeze', 'slow']
  )
  parser.add_argument('--replicas', type=int, default=0)
  parser.add_argument('--keep_logs', help="a folder for the tasks' output")
  return parser


def _folder(
  faults: Sequence[str],
) -> contextlib.AbstractContextManager[str | pathlib.Path]:
  """Returns a folder for snapshots, on a disk of its own if faults fill it."""
  if 'fill' in faults:
    return disks.small_disk(_DISK_BYTES)
  return tempfile.TemporaryDirectory(prefix='tfps-soak-')


def report(
  at: Sequence[Sequence[float]], memory: Memory, began: float, secs: float
) -> str:
  """Returns a Markdown table with a line for each third of the time.

  Args:
    at: each logged step and its time.
    memory: samples of the tasks' memory.
    began: the time when the soak began.
    secs: its duration in seconds.
  """
  tasks = list(memory)
  columns = ['minutes', 'steps', 'longest pause, s', 'from, s']
  columns += [f'{task}, MB at most' for task in tasks]
  lines = [columns, ['---'] * len(columns)]
  for part in range(_NUM_PARTS):
    first, last = (began + secs * (part + i) / _NUM_PARTS for i in range(2))
    own = [when for _, when in at if first <= when < last]
    paused_at, resumed_at = progress.longest_gap([*own, last], first)
    lines.append(
      [
        f'{(first - began) / 60:.1f}..{(last - began) / 60:.1f}',
        f'{_step(at, last) - _step(at, first):.0f}',
        f'{resumed_at - paused_at:.1f}',
        f'{paused_at - began:.1f}',
        *(_most(memory[task], first, last) for task in tasks),
      ]
    )
  return '\n'.join(f'| {" | ".join(line)} |' for line in lines)


def _step(at: Sequence[Sequence[float]], moment: float) -> float:
  """Returns the last step that was logged before a moment."""
  return next((step for step, when in reversed(at) if when < moment), 0.0)


def _most(
  samples: Sequence[tuple[float, float]], first: float, last: float
) -> str:
  own = [megabytes for when, megabytes in samples if first <= when < last]
  return f'{max(own):.0f}' if own else ''


def _watch(cluster: process_cluster.ProcessCluster, until: float) -> Memory:
  """Samples the tasks' memory until a time."""
  tasks = cluster.cluster.tasks()
  memory: dict[str, list[tuple[float, float]]] = {str(t): [] for t in tasks}
  while (now := time.time()) < until:
    for task in tasks:
      megabytes = _resident_megabytes(cluster.pid(task.job, task.index))
      if megabytes is not None:
        memory[str(task)].append((now, megabytes))
    time.sleep(timeouts.current().probe_every_secs)
  return memory


def _resumes(
  cluster: process_cluster.ProcessCluster, timeout_secs: float
) -> bool:
  """Returns whether a further step is logged in time."""
  now = time.time()
  while time.time() < now + timeout_secs:
    at = progress.numbers(cluster.log('chief', 0), 'at')
    if at and at[-1][1] > now:
      return True
    time.sleep(timeouts.current().probe_every_secs)
  return False


def _resident_megabytes(pid: int) -> float | None:
  """Returns a process' resident memory; None if it has ended."""
  try:
    text = pathlib.Path(f'/proc/{pid}/status').read_text()
  except OSError:
    return None
  for line in text.splitlines():
    if line.startswith('VmRSS:'):
      return float(line.split()[1]) / 1e3
  return None


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
