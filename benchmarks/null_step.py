"""A step that computes nothing: what it costs to reach the ps and back.

Each way to train has a cluster of processes of its own, and they take turns.
"""

from collections.abc import Iterator
import contextlib
import os
import pathlib
import select
import sys
import tempfile

from benchmarks import null_step_task
from benchmarks import runner
import tfps
from tfps import testing

_PROGRAM = pathlib.Path(null_step_task.__file__)
_MODES = ('coordinator', 'between graphs')
_NUM_STEPS = {'scalar': 400, '1 MB': 200, '100 MB': 4}
_NUM_ROUNDS = 7


def compare(*, quick: bool) -> Iterator[runner.Comparison]:
  """One comparison for each mode, size and number of workers."""
  for num_workers in (1,) if quick else (1, 2):
    with contextlib.ExitStack() as stack:
      sides = {
        mode: stack.enter_context(_Side(mode, num_workers))
        for mode in ('stock', *_MODES)
      }
      for size in ('scalar',) if quick else null_step_task.SIZES:
        for mode in _MODES:
          yield _compare(sides, mode, size, num_workers, quick=quick)


def _compare(
  sides: 'dict[str, _Side]',
  mode: str,
  size: str,
  num_workers: int,
  *,
  quick: bool,
) -> runner.Comparison:
  num_steps = 10 if quick else _NUM_STEPS[size]
  s = '' if num_workers == 1 else 's'
  return runner.compare_times(
    f'null step: {mode}, {size}, {num_workers} worker{s}',
    lambda: sides[mode].run(size, num_steps),
    lambda: sides['stock'].run(size, num_steps),
    num_steps=num_steps,
    num_rounds=2 if quick else _NUM_ROUNDS,
  )


class _Side:
  """A cluster that trains in one way; a context manager."""

  def __init__(self, mode: str, num_workers: int) -> None:
    by_workers = mode == 'between graphs'
    job = 'worker' if by_workers else 'chief'
    self._tasks = [
      tfps.Task(job, i) for i in range(num_workers if by_workers else 1)
    ]
    self._stack = contextlib.ExitStack()
    folder = self._stack.enter_context(tempfile.TemporaryDirectory())
    self._cluster = testing.ProcessCluster(
      num_workers,
      1,
      commands={job: [sys.executable, str(_PROGRAM), mode, folder]},
      env={'TF_CPP_MIN_LOG_LEVEL': '2'},
    )
    self._orders, self._answers = (
      {task: self._pipe(f'{folder}/{task}.{what}') for task in self._tasks}
      for what in ('orders', 'answers')
    )

  def __enter__(self) -> '_Side':
    self._stack.enter_context(self._cluster)
    return self

  def __exit__(self, *exc_info: object) -> None:
    self._stack.close()

  def run(self, size: str, num_steps: int) -> None:
    """Does so many steps, shared out among those that take orders."""
    share = num_steps // len(self._tasks)
    for orders in self._orders.values():
      os.write(orders, f'{size} {share}\n'.encode())
    for task, answers in self._answers.items():
      while not select.select([answers], [], [], 1.0)[0]:
        self._check_alive(task)
      os.read(answers, len('done\n'))

  def _pipe(self, path: str) -> int:
    """Opened for both directions, which waits for nobody."""
    os.mkfifo(path)
    pipe = os.open(path, os.O_RDWR)
    self._stack.callback(os.close, pipe)
    return pipe

  def _check_alive(self, task: tfps.Task) -> None:
    with contextlib.suppress(tfps.DeadlineError):
      status = self._cluster.wait(task.job, task.index, timeout_secs=0)
      log = self._cluster.log(task.job, task.index)[-2000:]
      raise RuntimeError(f'{task} has ended with status {status}:\n{log}')
