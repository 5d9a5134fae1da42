"""Command that trains a DLRM in three ways on a local cluster, and compares.

    python examples/criteo/demo.py
    python examples/criteo/demo.py --data=train.txt

The first trains on synthetic rows, the second on a file of Criteo's. The ways
are: with a table that grows with the ids, while an evaluator serves what is
trained; with a table of a fixed size; and again with one that grows, in a
single process. Options of `train.py` may follow `--`.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
from typing import Any

from absl import app
from absl import flags

_DATA = flags.DEFINE_string(
  'data', None, 'File of Criteo or folder that data.py has written to.'
)
_ROWS = flags.DEFINE_integer('rows', 220_000, 'Synthetic rows, without --data.')
_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir', 'runs/criteo', 'Where all results go; those there are removed.'
)

_FOLDER = pathlib.Path(__file__).parent
_LAUNCH = ['-m', 'tfps.launch', '--num_workers=2', '--num_ps=2']
_LAUNCH += ['--preload=tensorflow,keras']  # once, and not in each task
_COUNTS = ('seen', 'admitted', 'evicted', 'rows')
_COLUMNS = '{:<10}{:>10}{:>10}{:>10}{:>10}{:>10}'


def main(args: list[str]) -> None:
  output = pathlib.Path(_OUTPUT_DIR.value)
  data = _data(output)
  results = {}
  for name, table, launch in (
    ('growing', 'growing', [*_LAUNCH, '--num_evaluators=1']),
    ('static', 'static', _LAUNCH),
    ('alone', 'growing', []),
  ):
    print(f'\n== {name} ==', flush=True)
    folder = output / name
    shutil.rmtree(folder, ignore_errors=True)
    logs = [f'--log_dir={output / "logs" / name}'] if launch else []
    train = [str(_FOLDER / 'train.py'), f'--table={table}', f'--data={data}']
    _run(*launch, *logs, *train, f'--output_dir={folder}', *args[1:])
    results[name] = json.loads((folder / 'result.json').read_text())
  served = json.loads((output / 'growing' / 'served.json').read_text())
  print(f'\n{_table(results)}')
  print(f'{"served":<10}{served[-1]["auc"]:>10.4f}')


def _data(output: pathlib.Path) -> pathlib.Path:
  """Returns a folder with rows, after writing them if need be."""
  if _DATA.value is not None and pathlib.Path(_DATA.value).is_dir():
    return pathlib.Path(_DATA.value)
  what = (
    f'--rows={_ROWS.value}' if _DATA.value is None else f'--tsv={_DATA.value}'
  )
  _run(str(_FOLDER / 'data.py'), f'--out={output / "data"}', what)
  return output / 'data'


def _run(*words: str) -> None:
  """Runs Python to its end; exits with its status if that is not 0."""
  env = {'TF_CPP_MIN_LOG_LEVEL': '3', **os.environ}
  status = subprocess.run([sys.executable, *words], env=env).returncode
  if status:
    sys.exit(status)


def _table(results: dict[str, Any]) -> str:
  names = ('', 'AUC', *_COUNTS)
  lines = [
    _COLUMNS.format(
      name,
      f'{r["auc"]:.4f}',
      *(f'{r[key]:,}' if key in r else '-' for key in _COUNTS),
    )
    for name, r in results.items()
  ]
  return '\n'.join([_COLUMNS.format(*names), *lines])


if __name__ == '__main__':
  app.run(main)
