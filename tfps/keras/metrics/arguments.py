"""Arguments of metrics: their checks and common shapes, and ratios of sums."""

import math
from typing import Any

import tensorflow as tf


def ratio(numerator: Any, denominator: Any) -> tf.Tensor:
  """Returns a quotient; NaN where the denominator is not more than 0.

  Args:
    numerator: a tensor of floating point.
    denominator: a tensor of the same type.
  """
  numerator = tf.convert_to_tensor(numerator)
  denominator = tf.convert_to_tensor(denominator)
  is_defined = denominator > 0
  safe = tf.where(is_defined, denominator, tf.ones_like(denominator))
  nan = tf.constant(math.nan, numerator.dtype)
  return tf.where(is_defined, numerator / safe, nan)


def require(condition: Any, message: str, value: Any) -> None:
  """Checks values: at once if they are known, else where the graph executes.

  Functions that are compiled by XLA leave such checks out.

  Args:
    condition: a boolean scalar.
    message: the error's message, before the value.
    value: the value to show.

  Raises:
    ValueError: the condition is known to be false.
  """
  if tf.is_symbolic_tensor(condition):
    tf.debugging.Assert(condition, [message, value])
  elif not condition:
    raise ValueError(f'{message} {tf.convert_to_tensor(value).numpy()}')


def examples(
  name: str, y_true: Any, y_pred: Any, sample_weight: Any, dtype: Any
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
  """Returns labels, predictions and weights as vectors of equal length.

  Args:
    name: the metric's name, for errors.
    y_true: the labels.
    y_pred: the predictions, of the same shape but for last axes of 1.
    sample_weight: None, a weight for each example or one for all.
    dtype: the type of the results.

  Raises:
    ValueError: the shapes do not fit.
  """
  labels = _without_last_one(tf.cast(tf.convert_to_tensor(y_true), dtype))
  scores = _without_last_one(tf.cast(tf.convert_to_tensor(y_pred), dtype))
  if not labels.shape.is_compatible_with(scores.shape):
    raise ValueError(
      f'{name}: y_true has the shape {_shape(y_true)} and y_pred the shape '
      f'{_shape(y_pred)}. Give one prediction for each label.'
    )
  weights = _weights(name, sample_weight, scores, dtype)
  return (
    tf.reshape(labels, [-1]),
    tf.reshape(scores, [-1]),
    tf.reshape(weights, [-1]),
  )


def lists(
  name: str, y_true: Any, y_pred: Any, sample_weight: Any, dtype: Any
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
  """Returns relevances and scores of candidates, and a weight for each row.

  Args:
    name: the metric's name, for errors.
    y_true: relevances, of shape [batch, candidates].
    y_pred: scores, of shape [batch, candidates].
    sample_weight: None, or weights of shape [batch], [batch, 1] or [].
    dtype: the type of the results.

  Raises:
    ValueError: the shapes do not fit.
  """
  relevances = tf.cast(tf.convert_to_tensor(y_true), dtype)
  scores = tf.cast(tf.convert_to_tensor(y_pred), dtype)
  is_matrix = relevances.shape.rank == scores.shape.rank == 2
  if not is_matrix or not relevances.shape.is_compatible_with(scores.shape):
    raise ValueError(
      f'{name}: y_true has the shape {_shape(y_true)} and y_pred the shape '
      f'{_shape(y_pred)}. Give both as [batch, candidates].'
    )
  return relevances, scores, _weights(name, sample_weight, scores[:, 0], dtype)


def number(name: str, argument: str, value: int) -> int:
  """Returns a number that is 1 or more.

  Args:
    name: the metric's class, for errors.
    argument: the name of its argument.
    value: the argument.

  Raises:
    ValueError: it is none.
  """
  if isinstance(value, bool) or int(value) != value or value < 1:
    raise ValueError(
      f'{name}: {argument} is {value}. Give a whole number of 1 or more.'
    )
  return int(value)


def _weights(
  name: str, sample_weight: Any, like: tf.Tensor, dtype: Any
) -> tf.Tensor:
  if sample_weight is None:
    return tf.ones_like(like)
  weights = tf.cast(tf.convert_to_tensor(sample_weight), dtype)
  if weights.shape.rank == (like.shape.rank or 0) + 1:
    weights = _without_last_one(weights)
  missing = (like.shape.rank or 0) - (weights.shape.rank or 0)
  if weights.shape.rank and missing > 0:  # weights of rows, for all in a row
    shape = tf.concat([tf.shape(weights), tf.ones([missing], tf.int32)], 0)
    weights = tf.reshape(weights, shape)
  try:
    tf.broadcast_static_shape(weights.shape, like.shape)
  except ValueError as error:
    raise ValueError(
      f'{name}: sample_weight has the shape {_shape(sample_weight)}, but there '
      f'are examples of shape {like.shape}. Give one weight for each.'
    ) from error
  return tf.broadcast_to(weights, tf.shape(like))


def _without_last_one(values: tf.Tensor) -> tf.Tensor:
  is_column = (values.shape.rank or 0) > 1 and values.shape[-1] == 1
  return tf.squeeze(values, [-1]) if is_column else values


def _shape(value: Any) -> tf.TensorShape:
  return tf.convert_to_tensor(value).shape
