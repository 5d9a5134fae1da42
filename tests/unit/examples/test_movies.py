"""Ratings of movies are read, held out and ranked."""

import numpy as np
import pandas as pd
import pytest

from tests.support import examples

movielens, ranking, model = examples.modules(
  'movies', 'movielens', 'ranking', 'model'
)


@pytest.fixture
def folder(tmp_path):
  """Two users, three movies; user 7 has rated movie 30, then 10, then 20."""
  pd.DataFrame(
    {
      'user_id': [7, 7, 7, 9],
      'movie_id': [20, 10, 30, 30],
      'rating': [5, 1, 3, 3],
      'timestamp': [6, 6, 5, 9],
    }
  ).to_parquet(tmp_path / 'data.parquet')
  pd.DataFrame(
    {'user_id': [7, 9], 'age': [31, 57], 'occupation': ['writer', 'artist']}
  ).to_parquet(tmp_path / 'users.parquet')
  pd.DataFrame(
    {
      'movie_id': [10, 20, 30],
      'movie_title': ['A', 'B', 'C'],
      'release_date': [''] * 3,
      'video_release_date': [''] * 3,
      'IMDb_URL': [''] * 3,
      'Drama': [1, 0, 1],
      'Comedy': [0, 1, 1],
    }
  ).to_parquet(tmp_path / 'items.parquet')
  return tmp_path


def test_inputs_are_those_of_the_ids_asked_for(folder):
  data = movielens.MovieLens.read(folder)
  users = data.users_inputs(np.array([9, 7, 9]))
  assert users['user'].tolist() == [9, 7, 9]
  assert users['age'].tolist() == [5, 3, 5]
  assert users['occupation'].tolist() == [0, 1, 0]
  movies = data.movies_inputs(np.array([30, 10]))
  assert movies['movie'].tolist() == [30, 10]
  assert movies['genres'].tolist() == [[1, 1], [1, 0]]


def test_the_latest_ratings_of_each_user_are_held_out(folder):
  held_out = ranking.HeldOut.of(movielens.MovieLens.read(folder), 1)
  assert held_out.held_out.tolist() == [[0, 1, 0], [0, 0, 1]]
  users, movies = held_out.pairs()
  assert users.tolist() == [7, 7]
  assert movies.tolist() == [10, 30]
  assert held_out.counts.tolist() == [1, 0, 1]
  np.testing.assert_allclose(np.exp(held_out.log_shares()), [0.4, 0.2, 0.4])


def test_what_a_user_has_rated_in_training_is_not_shown(folder):
  held_out = ranking.HeldOut.of(movielens.MovieLens.read(folder), 1)
  best = held_out.judge(np.array([[9, 1, 8], [1, 2, 3]]))
  assert best == {'recall_at_50': 1, 'ndcg_at_50': 1}
  worst = held_out.judge(np.array([[9, 1, 8], [3, 2, 1]]))
  assert worst['ndcg_at_50'] == pytest.approx((1 + 0.5) / 2)


def test_missing_files_are_named_with_what_fetches_them(folder):
  (folder / 'items.parquet').unlink()
  with pytest.raises(
    movielens.MissingDataError, match=r'items\.parquet is missing\..*data\.py'
  ):
    movielens.MovieLens.read(folder)


def test_a_movie_that_is_in_a_batch_twice_is_not_taken_for_another():
  loss = model.OwnMovie(reduction=None)
  scores = np.array([[1, 5, 2], [0, 3, 3], [2, 2, 2]], 'f')
  found = loss(np.array([10, 10, 30]), scores)
  expected = [np.log(1 + np.exp(1)), np.log(2), np.log(3)]
  np.testing.assert_allclose(found, expected, rtol=1e-5)
