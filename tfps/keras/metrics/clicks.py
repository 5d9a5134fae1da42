"""Metrics of predicted probabilities of clicks, which are ratios of sums.

Both are defined by He et al. (2014), "Practical lessons from predicting clicks
on ads at Facebook". Their state is additive.
"""

from typing import Any

import keras
import tensorflow as tf

from tfps.keras.metrics import arguments


class _ClickMetric(keras.metrics.Metric):
  """Metric of sums over examples with labels and predicted probabilities.

  Args:
    from_logits: whether predictions are logits instead of probabilities.
    name: the metric's name.
    dtype: the type of the sums and the result.
  """

  def __init__(self, *, from_logits: bool, name: str, dtype: Any) -> None:
    super().__init__(name=name, dtype=dtype)
    self.from_logits = from_logits

  def update_state(
    self, y_true: Any, y_pred: Any, sample_weight: Any = None
  ) -> None:
    """Adds examples.

    Args:
      y_true: the labels.
      y_pred: the predictions.
      sample_weight: weights of the examples.

    Raises:
      ValueError: the shapes do not fit.
    """
    labels, scores, weights = arguments.examples(
      self.name, y_true, y_pred, sample_weight, self.dtype
    )
    self._add(labels, scores, weights)

  def get_config(self) -> dict[str, Any]:
    """Returns the arguments of a metric like this one."""
    return {**super().get_config(), 'from_logits': self.from_logits}

  def _add(
    self, labels: tf.Tensor, scores: tf.Tensor, weights: tf.Tensor
  ) -> None:
    """Adds examples, of which all tensors are vectors of one length."""
    raise NotImplementedError


@keras.saving.register_keras_serializable(package='tfps')
class NormalizedEntropy(_ClickMetric):
  """Log loss, divided by the entropy of the average label.

  It is 1 for a model that always predicts the average label, and less for a
  better one. It is NaN while all labels are the same.

  `y_true` has labels from 0 to 1 and `y_pred` a prediction for each; both have
  the shape [batch], [batch, 1] or [batch, outputs].

  Args:
    from_logits: whether predictions are logits instead of probabilities.
    name: the metric's name.
    dtype: the type of the sums and the result.
  """

  def __init__(
    self,
    *,
    from_logits: bool = False,
    name: str = 'normalized_entropy',
    dtype: Any = None,
  ) -> None:
    super().__init__(from_logits=from_logits, name=name, dtype=dtype)
    self.log_loss = _sum(self, 'log_loss')
    self.positives = _sum(self, 'positives')
    self.weights = _sum(self, 'weights')

  def _add(
    self, labels: tf.Tensor, scores: tf.Tensor, weights: tf.Tensor
  ) -> None:
    losses = _log_losses(labels, scores, from_logits=self.from_logits)
    self.log_loss.assign_add(tf.reduce_sum(weights * losses))
    self.positives.assign_add(tf.reduce_sum(weights * labels))
    self.weights.assign_add(tf.reduce_sum(weights))

  def result(self) -> tf.Tensor:
    """Returns the normalized entropy of all examples."""
    weights = tf.convert_to_tensor(self.weights)
    average = arguments.ratio(self.positives, weights)
    negatives = 1 - average
    entropy = -tf.math.xlogy(average, average)
    entropy -= tf.math.xlogy(negatives, negatives)
    return arguments.ratio(self.log_loss, weights * entropy)


@keras.saving.register_keras_serializable(package='tfps')
class Calibration(_ClickMetric):
  """Sum of predictions, divided by the sum of labels.

  It is 1 if as many clicks are predicted as there are, and more if too many
  are. It is NaN while there is no positive label. Shapes are those of
  `NormalizedEntropy`.

  Args:
    from_logits: whether predictions are logits instead of probabilities.
    name: the metric's name.
    dtype: the type of the sums and the result.
  """

  def __init__(
    self,
    *,
    from_logits: bool = False,
    name: str = 'calibration',
    dtype: Any = None,
  ) -> None:
    super().__init__(from_logits=from_logits, name=name, dtype=dtype)
    self.predictions = _sum(self, 'predictions')
    self.labels = _sum(self, 'labels')

  def _add(
    self, labels: tf.Tensor, scores: tf.Tensor, weights: tf.Tensor
  ) -> None:
    if self.from_logits:
      scores = tf.sigmoid(scores)
    self.predictions.assign_add(tf.reduce_sum(weights * scores))
    self.labels.assign_add(tf.reduce_sum(weights * labels))

  def result(self) -> tf.Tensor:
    """Returns the calibration of all examples."""
    return arguments.ratio(self.predictions, self.labels)


def _sum(metric: keras.metrics.Metric, name: str) -> Any:
  """Returns a new variable of a metric, which begins with 0."""
  return metric.add_weight(
    shape=(), initializer='zeros', dtype=metric.dtype, name=name
  )


def _log_losses(
  labels: tf.Tensor, scores: tf.Tensor, *, from_logits: bool
) -> tf.Tensor:
  if from_logits:
    return tf.nn.sigmoid_cross_entropy_with_logits(labels, scores)
  # As Keras does, so that no loss is infinite.
  epsilon = keras.config.epsilon()
  scores = tf.clip_by_value(scores, epsilon, 1 - epsilon)
  return -labels * tf.math.log(scores) - (1 - labels) * tf.math.log(1 - scores)
