"""Trains on the flights on a local cluster: `make demo`.

The cluster is a chief, two workers and two ps, all of them processes of this
machine, anew for each mode. Exits 1 unless each beats the logistic regression.
"""

from collections.abc import Iterable
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
from typing import Any

from absl import app
from absl import flags

_MODES = ['coordinator', 'between_graph']
_MODE = flags.DEFINE_multi_enum(
  'mode', ['coordinator'], _MODES, 'How to train; repeat it for both.'
)
_NUM_WORKERS = flags.DEFINE_integer('num_workers', 2, 'Worker tasks.')
_NUM_PS = flags.DEFINE_integer('num_ps', 2, 'Parameter server tasks.')
_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir', 'runs/flights', 'Where the results of each mode go; emptied.'
)

# A task that is killed, from another shell, say, is started again.
_MAX_RESTARTS = 20
_TRAIN = pathlib.Path(__file__).with_name('train.py')
# What TensorFlow says of a machine without GPU, at any level of logging.
_NOISE = (
  'Could not find cuda drivers',
  'All log messages before absl::InitializeLog()',
)
_COLUMNS = '{:<15}{:>10}{:>10}{:>10}{:>10}{:>10}'


def main(args: list[str]) -> int:
  results: list[dict[str, Any]] = []
  for mode in _MODE.value:
    # All get the same flights, so the first one's baseline is everybody's.
    known = [f'--baseline_auc={r["baseline_auc"]}' for r in results[:1]]
    results.append(_run(mode, [*known, *args[1:]]))
  print(_table(results))
  if any(r['auc'] <= r['baseline_auc'] for r in results):
    print('The logistic regression has not been beaten.')
    return 1
  return 0


def _run(mode: str, args: list[str]) -> dict[str, Any]:
  """Trains in one mode; its result, with the seconds of everything."""
  folder = pathlib.Path(_OUTPUT_DIR.value) / mode
  # A checkpoint from before would be taken up again, and training be over.
  shutil.rmtree(folder, ignore_errors=True)
  launch = [sys.executable, '-m', 'tfps.launch', '--num_chiefs=1']
  launch += ['--preload=tensorflow,keras']  # once, and not in each task
  launch += [f'--max_restarts={_MAX_RESTARTS}']
  launch += [f'--num_workers={_NUM_WORKERS.value}', f'--num_ps={_NUM_PS.value}']
  train = [str(_TRAIN), f'--mode={mode}', f'--output_dir={folder}', *args]
  print(f'\n== {mode} ==', flush=True)
  began_at = time.monotonic()
  status = _show([*launch, f'--log_dir={folder / "logs"}', *train])
  if status:
    sys.exit(status)
  result: dict[str, Any] = json.loads((folder / 'result.json').read_text())
  return {**result, 'total_secs': time.monotonic() - began_at}


def _show(command: list[str]) -> int:
  """Runs a command, shows what it writes, and returns its status."""
  env = dict(os.environ)
  if sys.stdout.isatty():
    env.setdefault('FORCE_COLOR', '1')
  launcher = subprocess.Popen(
    command, env=env, stdout=subprocess.PIPE, text=True, errors='replace'
  )
  try:
    _copy(launcher.stdout)
  except KeyboardInterrupt:
    _copy(launcher.stdout)  # It heard that, too, and stops its tasks.
  return launcher.wait()


def _copy(lines: Iterable[str]) -> None:
  for line in lines:
    if not any(words in line for words in _NOISE):
      print(line, end='', flush=True)


def _table(results: list[dict[str, Any]]) -> str:
  names = ('mode', 'AUC', 'baseline', 'steps/s', 'training', 'total')
  lines = [
    _COLUMNS.format(
      r['mode'],
      f'{r["auc"]:.4f}',
      f'{r["baseline_auc"]:.4f}',
      f'{r["steps_per_sec"]:.1f}',
      f'{r["seconds"]:.0f} s',
      f'{r["total_secs"]:.0f} s',
    )
    for r in results
  ]
  return '\n'.join(['', _COLUMNS.format(*names), *lines])


if __name__ == '__main__':
  app.run(main)
