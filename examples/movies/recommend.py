"""Recommends movies to a user by what `train.py` has left; without tfps.

    python examples/movies/recommend.py --user=196

It needs TensorFlow to load the user tower, and nothing of the cluster. Where
there are many more movies, an index of nearest neighbours takes the place of
the products with all vectors.
"""

import pathlib

from absl import app
from absl import flags
import movielens
import numpy as np
import pandas as pd
import tensorflow as tf

_DATA = flags.DEFINE_string(
  'data', 'runs/movies/data', 'Folder that data.py has written to.'
)
_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir', 'runs/movies/cluster', 'Folder that train.py has written to.'
)
_USER = flags.DEFINE_integer('user', 196, 'The number of the user.')
_NUMBER = flags.DEFINE_integer('number', 10, 'How many movies to recommend.')


def main(_: list[str]) -> None:
  data = movielens.MovieLens.read(pathlib.Path(_DATA.value))
  output = pathlib.Path(_OUTPUT_DIR.value)
  user = _USER.value
  if user not in data.users.index:
    raise app.UsageError(
      f'--user={user}: there are the users {data.users.index.min()} to '
      f'{data.users.index.max()}.'
    )
  tower = tf.saved_model.load(output / 'user_tower')
  (vector,) = tower.serve(data.users_inputs(np.array([user]))).numpy()
  movies = pd.read_parquet(output / 'movies.parquet').set_index('movie_id')
  scores = pd.Series(np.stack(movies['vector']) @ vector, movies.index)
  rated = data.ratings[data.ratings['user_id'] == user].sort_values('rank')
  best = scores.drop(rated['movie_id']).nlargest(_NUMBER.value).index
  _show(f'User {user} has rated lately:', movies, rated['movie_id'].head(5))
  _show('and may want to see:', movies, best)


def _show(heading: str, movies: pd.DataFrame, ids: pd.Series) -> None:
  print(heading)
  for title in movies.loc[ids, 'movie_title']:
    print(f'  {title}')


if __name__ == '__main__':
  app.run(main)
