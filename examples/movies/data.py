"""Command that fetches the ratings of MovieLens 100K.

    python examples/movies/data.py

See `movielens.py` about where they come from.
"""

import pathlib

from absl import app
from absl import flags
import movielens

_OUT = flags.DEFINE_string('out', 'runs/movies/data', 'Folder to write to.')


def main(_: list[str]) -> None:
  folder = pathlib.Path(_OUT.value)
  movielens.fetch(folder)
  data = movielens.MovieLens.read(folder)
  print(
    f'{folder}: {len(data.ratings):,} ratings of {len(data.movies):,} movies '
    f'by {len(data.users):,} users'
  )


if __name__ == '__main__':
  app.run(main)
