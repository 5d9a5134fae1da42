"""Learns which movies a user will rate; every task runs this file.

    python examples/movies/train.py
    tfps launch --num_workers=2 --num_ps=2 examples/movies/train.py

`data.py` fetches the ratings. The chief trains and leaves in `--output_dir`:
`result.json`, how well movies are ranked; `user_tower`, a SavedModel of users'
vectors; `movies.parquet`, the vectors of all movies.
"""

import json
import pathlib
import sys
import time

from absl import app
from absl import flags
from absl import logging
import keras
import model as model_lib
import movielens
import numpy as np
import ranking

import tfps

_DATA = flags.DEFINE_string(
  'data', 'runs/movies/data', 'Folder that data.py has written to.'
)
_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir', 'runs/movies/cluster', 'Folder for the results.'
)
_HELD_OUT = flags.DEFINE_integer(
  'held_out', 10, 'How many of the latest ratings of each user to hold out.'
)
_EPOCHS = flags.DEFINE_integer('epochs', 6, 'How often each rating is used.')
_BATCH_SIZE = flags.DEFINE_integer('batch_size', 256, 'Ratings in one step.')
_STEPS_PER_EXECUTION = flags.DEFINE_integer(
  'steps_per_execution', 8, 'Steps that a worker does in one call.'
)
_LEARNING_RATE = flags.DEFINE_float('learning_rate', 0.05, 'Of Adagrad.')
_SEED = flags.DEFINE_integer('seed', 1, 'Of initial values and of shuffling.')

# Keras' 0.1 would make the first steps of each row, of which most have only a
# few, so small that little is learnt.
_INITIAL_ACCUMULATOR = 1e-5

tfps.define_flags()


def main(_: list[str]) -> None:
  logging.set_verbosity(logging.WARNING)  # What matters here is printed.
  cluster = tfps.resolve_cluster()
  if cluster.task.job in ('ps', 'worker'):
    return tfps.serve(cluster)
  return train(cluster, pathlib.Path(_OUTPUT_DIR.value))


def train(cluster: tfps.Cluster, output: pathlib.Path) -> None:
  """This process, the chief, has the workers execute the steps."""
  try:
    data = movielens.MovieLens.read(pathlib.Path(_DATA.value))
  except movielens.MissingDataError as error:
    sys.exit(str(error))
  held_out = ranking.HeldOut.of(data, _HELD_OUT.value)
  keras.utils.set_random_seed(_SEED.value)
  strategy = tfps.ParameterServerStrategy(cluster)
  with strategy.scope():
    users = model_lib.user_tower()
    movies = model_lib.movie_tower(len(data.genres))
    model = model_lib.retrieval(users, movies)
    model.compile(
      keras.optimizers.Adagrad(
        _LEARNING_RATE.value, initial_accumulator_value=_INITIAL_ACCUMULATOR
      ),
      model_lib.OwnMovie(),
      steps_per_execution=_STEPS_PER_EXECUTION.value,
      jit_compile=False,
    )
  inputs, ids = _training(data, held_out)
  began_at = time.monotonic()
  model.fit(
    inputs, ids, batch_size=_BATCH_SIZE.value, epochs=_EPOCHS.value, verbose=2
  )
  secs = time.monotonic() - began_at
  by_user = users.predict(data.users_inputs(held_out.users), verbose=0)
  by_movie = movies.predict(data.movies_inputs(held_out.movies), verbose=0)
  result = {
    'steps': int(model.optimizer.iterations),
    'seconds': secs,
    'popular': held_out.judge_popular(),
    'towers': held_out.judge(by_user @ by_movie.T),
  }
  users.export(output / 'user_tower', verbose=False)
  strategy.close()
  titles = data.movies['movie_title'].reset_index()
  titles.assign(vector=list(by_movie)).to_parquet(output / 'movies.parquet')
  (output / 'result.json').write_text(json.dumps(result, indent=2) + '\n')
  shown = ', '.join(f'{k} {v:.3f}' for k, v in result['towers'].items())
  print(f'{result["steps"]} steps in {secs:.1f} seconds, {shown}')


def _training(
  data: movielens.MovieLens, held_out: ranking.HeldOut
) -> tuple[dict[str, np.ndarray], np.ndarray]:
  """Returns the model's inputs and the labels, one row for each rating."""
  users, movies = held_out.pairs()
  places = data.movies.index.get_indexer(movies)
  inputs = {
    **data.users_inputs(users),
    **data.movies_inputs(movies),
    'log_share': held_out.log_shares()[places],
  }
  return inputs, movies


if __name__ == '__main__':
  app.run(main)
