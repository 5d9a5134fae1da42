"""Areas under ROC curves by ranks, exact with ties, of all or by group.

A rank depends on all examples, so that these metrics are not additive: they
keep the examples, in variables of a fixed size, which a function compiled by
XLA needs. Under a strategy of tfps the variables go from one execution to the
next, see `keras.metric_state`.
"""

from typing import Any

import keras
import tensorflow as tf

from tfps.keras.metrics import arguments

_WEIGHTS = ('examples', 'positives')
_LARGEST_IDS = {  # up to which a type has every integer
  tf.bfloat16: 2**8,
  tf.float16: 2**11,
  tf.float32: 2**24,
  tf.float64: 2**53,
}


class _ExampleMetric(keras.metrics.Metric):
  """Metric that keeps labels, predictions and weights of examples.

  Args:
    max_examples: the largest number of examples.
    name: the metric's name.
    dtype: the type of the predictions and the result.

  Raises:
    ValueError: `max_examples` is less than 1.
  """

  def __init__(self, max_examples: int, *, name: str, dtype: Any) -> None:
    super().__init__(name=name, dtype=dtype)
    self.max_examples = arguments.number(
      type(self).__name__, 'max_examples', max_examples
    )
    self.examples = self.add_weight(
      shape=(self.max_examples, 3),
      initializer='zeros',
      dtype=self.dtype,
      name='examples',
    )
    self.count = self.add_weight(
      shape=(), initializer='zeros', dtype='int32', name='count'
    )

  def get_config(self) -> dict[str, Any]:
    """Returns the arguments of a metric like this one."""
    return {**super().get_config(), 'max_examples': self.max_examples}

  def _places(self, number: tf.Tensor) -> tf.Tensor:
    """Returns the rows of new examples, of which there is a number."""
    count = tf.convert_to_tensor(self.count)
    end = count + number
    arguments.require(
      end <= self.max_examples,
      f'{self.name}: max_examples is {self.max_examples}. Give as many as '
      'there are between resets. Examples so far:',
      end,
    )
    # Unlike a sum, the minimum tells that the variable is not additive: a step
    # has to know it.
    self.count.assign(tf.minimum(end, self.max_examples + 1))
    places = tf.minimum(tf.range(count, end), self.max_examples - 1)
    return places[:, tf.newaxis]

  def _keep(self, places: tf.Tensor, *columns: tf.Tensor) -> None:
    rows = tf.stack(columns, axis=1)
    self.examples.assign(
      tf.tensor_scatter_nd_update(self.examples.value, places, rows)
    )

  def _area(self, groups: tf.Tensor, *, by_positives: bool) -> tf.Tensor:
    """Returns the mean of the groups' areas.

    It is NaN after too many examples, and if a prediction is NaN.
    """
    labels, scores, weights = tf.unstack(self.examples.value, axis=1)
    area = _mean_area(
      labels, scores, weights, groups, by_positives=by_positives
    )
    has_area = tf.convert_to_tensor(self.count) <= self.max_examples
    has_area &= ~tf.reduce_any(tf.math.is_nan(scores))
    nan = tf.constant(float('nan'), area.dtype)
    return tf.cast(tf.where(has_area, area, nan), self.dtype)


@keras.saving.register_keras_serializable(package='tfps')
class ExactAUC(_ExampleMetric):
  """Area under the ROC curve by ranks, exact also among equal predictions.

  It is the probability that a positive example has a higher prediction than a
  negative one, where equal predictions count half. Keras' `AUC` approximates it
  by thresholds. It is NaN while all labels are the same.

  `y_true` has labels, of which those more than 0 are positive, and `y_pred` a
  prediction for each, as probability or logit; both have the shape [batch] or
  [batch, 1].

  Examples are kept until `reset_state`, 12 bytes each in float32. Compiled into
  a model under a strategy of tfps, executions wait for each other and carry
  all of `max_examples`. For training use `tfps.keras.EvaluatePredictions`.

  Args:
    max_examples: the largest number of examples. More are a ValueError, an
      error of the step in a graph, and the result NaN in a function that XLA
      compiles, as Keras does in a single process.
    name: the metric's name.
    dtype: the type of the predictions and the result. Predictions that differ
      only in a wider type are equal.

  Raises:
    ValueError: `max_examples` is less than 1.
  """

  def __init__(
    self,
    max_examples: int = 100_000,
    *,
    name: str = 'exact_auc',
    dtype: Any = None,
  ) -> None:
    super().__init__(max_examples, name=name, dtype=dtype)

  def update_state(
    self, y_true: Any, y_pred: Any, sample_weight: Any = None
  ) -> None:
    """Keeps examples.

    Args:
      y_true: the labels.
      y_pred: the predictions.
      sample_weight: weights of the examples.

    Raises:
      ValueError: the shapes do not fit, or there are too many examples.
    """
    columns = arguments.examples(
      self.name, y_true, y_pred, sample_weight, self.dtype
    )
    self._keep(self._places(tf.size(columns[0])), *columns)

  def result(self) -> tf.Tensor:
    """Returns the area of all examples."""
    one_group = tf.zeros([self.max_examples], tf.int64)
    return self._area(one_group, by_positives=False)


@keras.saving.register_keras_serializable(package='tfps')
class GroupedAUC(_ExampleMetric):
  """Mean of the areas under the ROC curves of groups, such as users (GAUC).

  The areas are those of `ExactAUC`, and weighted by the groups' numbers of
  examples, or of positive ones; with `sample_weight`, by the sums of weights.
  Groups whose labels are all the same have no area and are left out. It is NaN
  while there are no others. See Zhu et al. (2017), "Optimized cost per click in
  Taobao display advertising".

  In a compiled model, `y_true` has the shape [batch, 2]: labels in the first
  column and groups in the second. Elsewhere it can have the shape [batch] or
  [batch, 1] beside `groups`. `y_pred` has the shape [batch] or [batch, 1].

  Examples are kept until `reset_state`, 20 bytes each in float32. What
  `ExactAUC` says of strategies holds here, too.

  Args:
    max_examples: the largest number of examples; see `ExactAUC`.
    weight_by: `'examples'` or `'positives'`.
    name: the metric's name.
    dtype: the type of the predictions and the result.

  Raises:
    ValueError: `max_examples` is less than 1, or `weight_by` is another.
  """

  def __init__(
    self,
    max_examples: int = 100_000,
    *,
    weight_by: str = 'examples',
    name: str = 'grouped_auc',
    dtype: Any = None,
  ) -> None:
    super().__init__(max_examples, name=name, dtype=dtype)
    if weight_by not in _WEIGHTS:
      raise ValueError(
        f"GroupedAUC: weight_by is {weight_by!r}. Give 'examples' or "
        "'positives'."
      )
    self.weight_by = weight_by
    self.groups = self.add_weight(
      shape=(self.max_examples,),
      initializer='zeros',
      dtype='int64',
      name='groups',
    )

  def update_state(
    self,
    y_true: Any,
    y_pred: Any,
    sample_weight: Any = None,
    *,
    groups: Any = None,
  ) -> None:
    """Keeps examples.

    Args:
      y_true: the labels; without `groups`, columns of labels and groups.
      y_pred: the predictions.
      sample_weight: weights of the examples.
      groups: the group of each example, integers of 0 or more.

    Raises:
      ValueError: the shapes do not fit, groups are not such integers, or there
        are too many examples.
    """
    if groups is None:
      y_true, groups = self._split(y_true)
    columns = arguments.examples(
      self.name, y_true, y_pred, sample_weight, self.dtype
    )
    ids = self._ids(groups, columns[0])
    places = self._places(tf.size(columns[0]))
    self._keep(places, *columns)
    self.groups.assign(
      tf.tensor_scatter_nd_update(self.groups.value, places, ids)
    )

  def result(self) -> tf.Tensor:
    """Returns the mean of the groups' areas."""
    by_positives = self.weight_by == 'positives'
    return self._area(self.groups.value, by_positives=by_positives)

  def get_config(self) -> dict[str, Any]:
    """Returns the arguments of a metric like this one."""
    return {**super().get_config(), 'weight_by': self.weight_by}

  def _split(self, y_true: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the two columns of `y_true`."""
    values = tf.convert_to_tensor(y_true)
    if values.shape.rank != 2 or values.shape[1] != 2:
      raise ValueError(
        f'{self.name}: y_true has the shape {values.shape}. Give the columns '
        '[label, group], or labels and the argument groups.'
      )
    return values[:, 0], values[:, 1]

  def _ids(self, groups: Any, labels: tf.Tensor) -> tf.Tensor:
    """Returns the groups as a vector of integers, checked."""
    groups = tf.convert_to_tensor(groups)
    flat = tf.reshape(groups, [-1])
    if not flat.shape.is_compatible_with(labels.shape):
      raise ValueError(
        f'{self.name}: groups has the shape {groups.shape}, but there are '
        f'{labels.shape[0]} labels. Give one group for each.'
      )
    ids = tf.cast(flat, tf.int64)
    is_wrong = (ids < 0) | (tf.cast(ids, flat.dtype) != flat)
    arguments.require(
      ~tf.reduce_any(is_wrong),
      f'{self.name}: groups must be integers of 0 or more. Number them from 0. '
      'A wrong one is:',
      tf.reduce_min(tf.where(is_wrong, flat, flat.dtype.max)),
    )
    if flat.dtype in _LARGEST_IDS:
      largest = _LARGEST_IDS[flat.dtype]
      arguments.require(
        tf.reduce_all(ids <= largest),
        f'{self.name}: {flat.dtype.name} does not have every integer above '
        f'{largest}. Give groups, or y_true, as int64. The largest group is:',
        tf.reduce_max(flat),
      )
    return ids


def _mean_area(
  labels: tf.Tensor,
  scores: tf.Tensor,
  weights: tf.Tensor,
  groups: tf.Tensor,
  *,
  by_positives: bool,
) -> tf.Tensor:
  """Returns the weighted mean of the areas of groups that have both labels.

  Examples of weight 0, such as unused rows, do not count.
  """
  order = tf.argsort(scores, stable=True)
  order = tf.gather(order, tf.argsort(tf.gather(groups, order), stable=True))
  scores, groups = tf.gather(scores, order), tf.gather(groups, order)
  weights = tf.cast(tf.gather(weights, order), tf.float64)
  is_positive = tf.gather(labels, order) > 0
  positives = tf.where(is_positive, weights, tf.zeros_like(weights))
  negatives = weights - positives

  of_group = _runs(groups[1:] != groups[:-1])
  of_tie = _runs((groups[1:] != groups[:-1]) | (scores[1:] != scores[:-1]))
  group_positives = _sums(positives, of_group)
  group_negatives = _sums(negatives, of_group)
  # Of each example: the negative ones of its group that are below or equal.
  tied = _sums(negatives, of_tie)
  below = tf.gather(tf.cumsum(tied, exclusive=True), of_tie)
  below -= tf.gather(tf.cumsum(group_negatives, exclusive=True), of_group)
  wins = positives * (below + tf.gather(tied, of_tie) / 2)

  pairs = group_positives * group_negatives
  areas = arguments.ratio(_sums(wins, of_group), pairs)
  sizes = group_positives
  if not by_positives:
    sizes = sizes + group_negatives
  has_area = pairs > 0
  zeros = tf.zeros_like(areas)
  return arguments.ratio(
    tf.reduce_sum(tf.where(has_area, sizes * areas, zeros)),
    tf.reduce_sum(tf.where(has_area, sizes, zeros)),
  )


def _runs(begins: tf.Tensor) -> tf.Tensor:
  """Returns the number of each element's run, given where others begin."""
  return tf.concat([[0], tf.cumsum(tf.cast(begins, tf.int32))], axis=0)


def _sums(values: tf.Tensor, runs: tf.Tensor) -> tf.Tensor:
  """Returns the sum of each run, followed by zeros."""
  return tf.math.unsorted_segment_sum(values, runs, values.shape[0])
