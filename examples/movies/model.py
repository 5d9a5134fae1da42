"""Two towers: vectors of users and of movies, whose products rank movies.

Sources: Covington et al., "Deep Neural Networks for YouTube Recommendations"
(2016); Yi et al., "Sampling-Bias-Corrected Neural Modeling for Large Corpus
Item Recommendations" (2019), whose correction for popular movies is used.
"""

from collections.abc import Sequence

import keras

import tfps

WIDTH = 32


def user_tower() -> keras.Model:
  """Returns a model of vectors of users, by their ids, ages and occupations."""
  inputs = {
    name: keras.Input((), dtype='int64', name=name)
    for name in ('user', 'age', 'occupation')
  }
  vectors = [
    tfps.embeddings.Embedding(WIDTH, name=f'{name}s')(ids)
    for name, ids in inputs.items()
  ]
  return keras.Model(inputs, _perceptron(vectors), name='user_tower')


def movie_tower(num_genres: int) -> keras.Model:
  """Returns a model of vectors of movies, by their ids and genres."""
  movie = keras.Input((), dtype='int64', name='movie')
  genres = keras.Input((num_genres,), name='genres')
  vectors = [
    tfps.embeddings.Embedding(WIDTH, name='movies')(movie),
    keras.layers.Dense(WIDTH, name='genres_of_movies')(genres),
  ]
  inputs = {'movie': movie, 'genres': genres}
  return keras.Model(inputs, _perceptron(vectors), name='movie_tower')


def retrieval(users: keras.Model, movies: keras.Model) -> keras.Model:
  """Returns a model of the scores of a batch's users for all of its movies.

  A movie is in a batch the more often, the more users have rated it. So its
  score is lowered by the logarithm of its share of the ratings, `log_share`.

  Args:
    users: the user tower.
    movies: the movie tower.
  """
  log_share = keras.Input((), name='log_share')
  inputs = {**users.input, **movies.input, 'log_share': log_share}
  by_user, by_movie = users(users.input), movies(movies.input)
  scores = keras.ops.matmul(by_user, keras.ops.transpose(by_movie)) - log_share
  return keras.Model(inputs, scores, name='retrieval')


@keras.saving.register_keras_serializable(package='movies')
class OwnMovie(keras.losses.Loss):
  """Cross-entropy of the movie that each user of a batch has rated.

  The other movies of the batch stand for all that the user has not rated.
  Labels are numbers of movies, of shape [batch], so that a movie that is in the
  batch twice is not taken for another one. Scores are of shape [batch, batch].
  """

  def call(
    self, y_true: keras.KerasTensor, y_pred: keras.KerasTensor
  ) -> keras.KerasTensor:
    same = keras.ops.cast(y_true[:, None] == y_true[None, :], y_pred.dtype)
    own = keras.ops.eye(keras.ops.shape(y_pred)[0], dtype=y_pred.dtype)
    scores = y_pred - 1e9 * (same - own)
    return keras.ops.categorical_crossentropy(own, scores, from_logits=True)


def _perceptron(vectors: Sequence[keras.KerasTensor]) -> keras.KerasTensor:
  values = keras.ops.concatenate(vectors, axis=1)
  hidden = keras.layers.Dense(2 * WIDTH, 'relu')(values)
  return keras.layers.Dense(WIDTH)(hidden)
