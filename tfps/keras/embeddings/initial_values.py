"""Initializers of a table's variables, each of which is on one ps."""

from typing import Any

import keras
import tensorflow as tf

from tfps.variables import growing


class Placed(keras.initializers.Initializer):
  """Initializer of a variable that is made on a ps of one's choice."""

  def __init__(self, initializer: Any, index: int, *, grows: bool) -> None:
    self._initializer = initializer
    self._index = index
    self._grows = grows

  def __call__(self, shape: Any, dtype: Any = None) -> Any:
    return self._initializer(shape, dtype=dtype)

  def tfps_making(self) -> Any:
    """Returns the context in which the variable is made."""
    return growing.making(self._index, grows=self._grows)


class Values(keras.initializers.Initializer):
  """Initializer with given values: one for all elements, or one for each."""

  def __init__(self, values: Any) -> None:
    self._values = values

  def __call__(self, shape: Any, dtype: Any = None) -> tf.Tensor:
    return tf.constant(self._values, dtype, shape)
