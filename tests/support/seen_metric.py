"""A metric that counts examples."""

import keras


class Seen(keras.metrics.Sum):
  """Counts examples."""

  def __init__(self) -> None:
    super().__init__(name='seen')

  def update_state(self, y_true, y_pred, sample_weight=None):
    return super().update_state(keras.ops.ones_like(y_true))
