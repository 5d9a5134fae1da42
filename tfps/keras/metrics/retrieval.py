"""Metrics of ranked candidates, averaged over the rows of batches.

In both, `y_true` has relevances and `y_pred` has scores, each of the shape
[batch, candidates]. Rows without a relevant candidate are left out. Among equal
scores the candidate of the lower index comes first. A candidate that only fills
up a row gets the relevance 0 and a score lower than all others, as `-inf`.
Their state is additive.
"""

from typing import Any

import keras
import tensorflow as tf

from tfps.keras.metrics import arguments


class _AtK(keras.metrics.Mean):
  """Mean over rows of a value of their first k candidates.

  Args:
    k: the number of candidates.
    name: the metric's name.
    dtype: the type of the sums and the result.

  Raises:
    ValueError: `k` is less than 1.
  """

  _prefix: str  # of the default name

  def __init__(
    self, k: int, *, name: str | None = None, dtype: Any = None
  ) -> None:
    self.k = arguments.number(type(self).__name__, 'k', k)
    super().__init__(name=name or f'{self._prefix}_at_{self.k}', dtype=dtype)

  def update_state(
    self, y_true: Any, y_pred: Any, sample_weight: Any = None
  ) -> None:
    """Adds the rows of a batch.

    Args:
      y_true: relevances, of shape [batch, candidates].
      y_pred: scores, of the same shape.
      sample_weight: weights of the rows.

    Raises:
      ValueError: the shapes do not fit.
    """
    relevances, scores, weights = arguments.lists(
      self.name, y_true, y_pred, sample_weight, self.dtype
    )
    values = self._values(relevances, scores)
    has_relevant = tf.reduce_any(relevances > 0, axis=1)
    super().update_state(
      tf.where(has_relevant, values, tf.zeros_like(values)),
      weights * tf.cast(has_relevant, weights.dtype),
    )

  def result(self) -> tf.Tensor:
    """Returns the mean over all rows that have a relevant candidate."""
    return arguments.ratio(self.total, self.count)

  def get_config(self) -> dict[str, Any]:
    """Returns the arguments of a metric like this one."""
    return {**super().get_config(), 'k': self.k}

  def _values(self, relevances: tf.Tensor, scores: tf.Tensor) -> tf.Tensor:
    """Returns the value of each row; any where nothing is relevant."""
    raise NotImplementedError

  def _first(self, values: tf.Tensor, by: tf.Tensor) -> tf.Tensor:
    """Returns the values of the first k candidates, ordered by others."""
    k = tf.minimum(self.k, tf.shape(by)[1])
    order = tf.argsort(by, direction='DESCENDING', stable=True)[:, :k]
    return tf.gather(values, order, batch_dims=1)


@keras.saving.register_keras_serializable(package='tfps')
class RecallAtK(_AtK):
  """Share of a row's relevant candidates that are among the k of best score.

  A candidate is relevant if its relevance is more than 0. With one relevant
  candidate in each row this is the hit rate. With more than k, a perfect
  ranking has less than 1. Shapes are those of `NDCGAtK`.

  Args:
    k: the number of candidates; all, if there are fewer.
    name: the metric's name; by default `recall_at_` and `k`.
    dtype: the type of the sums and the result.

  Raises:
    ValueError: `k` is less than 1.
  """

  _prefix = 'recall'

  def _values(self, relevances: tf.Tensor, scores: tf.Tensor) -> tf.Tensor:
    relevant = tf.cast(relevances > 0, scores.dtype)
    found = tf.reduce_sum(self._first(relevant, scores), axis=1)
    return arguments.ratio(found, tf.reduce_sum(relevant, axis=1))


@keras.saving.register_keras_serializable(package='tfps')
class NDCGAtK(_AtK):
  """Discounted gain of the k candidates of best score, by the best possible.

  The gain of a candidate of relevance r at place i, counted from 1, is
  (2^r - 1) / log2(i + 1). The sum over the first k is divided by that of the
  order by relevance.

  `y_true` has relevances of 0 or more and `y_pred` scores, both of the shape
  [batch, candidates]; `sample_weight` has the shape [batch]. Rows without a
  relevant candidate are left out. Equal scores keep the candidates' order.

  Args:
    k: the number of candidates; all, if there are fewer.
    name: the metric's name; by default `ndcg_at_` and `k`.
    dtype: the type of the sums and the result.

  Raises:
    ValueError: `k` is less than 1.
  """

  _prefix = 'ndcg'

  def _values(self, relevances: tf.Tensor, scores: tf.Tensor) -> tf.Tensor:
    gains = 2**relevances - 1
    best = self._discounted(self._first(gains, gains))
    return arguments.ratio(self._discounted(self._first(gains, scores)), best)

  def _discounted(self, gains: tf.Tensor) -> tf.Tensor:
    places = tf.cast(tf.range(tf.shape(gains)[1]) + 2, gains.dtype)
    two = tf.constant(2, gains.dtype)
    return tf.reduce_sum(gains * tf.math.log(two) / tf.math.log(places), axis=1)
