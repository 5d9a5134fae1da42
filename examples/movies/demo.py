"""Command that trains two towers on a local cluster, and recommends movies.

    python examples/movies/demo.py

It fetches the ratings if need be, trains on two workers and two ps, and again
in a single process, and compares both with showing the most popular movies to
everybody. Options of `train.py` may follow `--`.
"""

import json
import os
import pathlib
import subprocess
import sys

from absl import app
from absl import flags
import movielens

_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir', 'runs/movies', 'Where the data and all results go.'
)

_FOLDER = pathlib.Path(__file__).parent
_LAUNCH = ['-m', 'tfps.launch', '--num_workers=2', '--num_ps=2']
_LAUNCH += ['--preload=tensorflow,keras']  # once, and not in each task


def main(args: list[str]) -> None:
  output = pathlib.Path(_OUTPUT_DIR.value)
  data = output / 'data'
  try:
    movielens.MovieLens.read(data)
  except movielens.MissingDataError:
    movielens.fetch(data)
  results = {}
  for name, launch in (
    ('cluster', [*_LAUNCH, f'--log_dir={output / "logs"}']),
    ('alone', []),
  ):
    print(f'\n== {name} ==', flush=True)
    folder = output / name
    train = [*launch, str(_FOLDER / 'train.py'), f'--data={data}']
    _run(*train, f'--output_dir={folder}', *args[1:])
    result = json.loads((folder / 'result.json').read_text())
    results |= {'popular': result['popular'], name: result['towers']}
  print(f'\n{"":10}' + ''.join(f'{name:>14}' for name in results['alone']))
  for name, values in results.items():
    print(f'{name:10}' + ''.join(f'{value:14.3f}' for value in values.values()))
  print(flush=True)
  recommend = [str(_FOLDER / 'recommend.py'), f'--data={data}']
  _run(*recommend, f'--output_dir={output / "cluster"}')


def _run(*words: str) -> None:
  """Runs Python to its end; exits with its status if that is not 0."""
  env = {'TF_CPP_MIN_LOG_LEVEL': '3', **os.environ}
  status = subprocess.run([sys.executable, *words], env=env).returncode
  if status:
    sys.exit(status)


if __name__ == '__main__':
  app.run(main)
