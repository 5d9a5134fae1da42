"""Ratings that are held out, and how well users' scores of movies rank them."""

import dataclasses

import movielens
import numpy as np

import tfps

_K = 50  # how many movies are shown to a user


@dataclasses.dataclass(frozen=True)
class HeldOut:
  """The latest ratings of each user; nothing is learnt from them.

  Attributes:
    users: ids of the users, of shape [users].
    movies: ids of the movies, of shape [movies].
    counts: ratings of each movie in training, of shape [movies].
    seen: whether a user has rated a movie in training, [users, movies].
    held_out: 1 where the rating is held out, else 0, [users, movies].
  """

  users: np.ndarray
  movies: np.ndarray
  counts: np.ndarray
  seen: np.ndarray
  held_out: np.ndarray

  @classmethod
  def of(cls, data: movielens.MovieLens, number: int) -> 'HeldOut':
    """Holds out the latest ratings of each user, so many of each."""
    ratings = data.ratings
    users, movies = data.users.index, data.movies.index
    held_out = np.zeros([len(users), len(movies)], np.float32)
    seen = np.zeros_like(held_out, bool)
    rows = users.get_indexer(ratings['user_id'])
    columns = movies.get_indexer(ratings['movie_id'])
    is_late = (ratings['rank'] < number).to_numpy()
    held_out[rows[is_late], columns[is_late]] = 1
    seen[rows[~is_late], columns[~is_late]] = True
    counts = seen.sum(axis=0)
    return cls(users.to_numpy(), movies.to_numpy(), counts, seen, held_out)

  def pairs(self) -> tuple[np.ndarray, np.ndarray]:
    """Returns the users and the movies of the ratings for training."""
    rows, columns = np.nonzero(self.seen)
    return self.users[rows], self.movies[columns]

  def log_shares(self) -> np.ndarray:
    """Returns logarithms of the share of each movie, [movies]; of few, more."""
    counts = self.counts + 1
    return np.log(counts / counts.sum()).astype(np.float32)

  def judge(self, scores: np.ndarray) -> dict[str, float]:
    """Returns how well scores rank what is held out, for `k` movies shown.

    Args:
      scores: of shape [users, movies]. Movies that a user has rated in training
        are not shown.
    """
    shown = np.where(self.seen, -np.inf, scores).astype(np.float32)
    results = {}
    for metric in (
      tfps.keras.metrics.RecallAtK(_K),
      tfps.keras.metrics.NDCGAtK(_K),
    ):
      metric.update_state(self.held_out, shown)
      results[metric.name] = float(metric.result())
    return results

  def judge_popular(self) -> dict[str, float]:
    """Returns what `judge` gives if all are shown the most popular movies."""
    return self.judge(np.broadcast_to(self.counts, self.seen.shape))
