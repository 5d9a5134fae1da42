"""Optimizers whose work workers and ps can share, and those refused."""

import keras
import pytest

from tfps.keras import hybrid_optimizers

REFUSED = {
  'the norm of all gradients': lambda: keras.optimizers.SGD(
    global_clipnorm=1.0
  ),
  'averages weights': lambda: keras.optimizers.SGD(use_ema=True),
  'accumulates gradients': lambda: keras.optimizers.SGD(
    gradient_accumulation_steps=2
  ),
  'all variables share': keras.optimizers.Nadam,
  'scales the loss': lambda: keras.optimizers.LossScaleOptimizer(
    keras.optimizers.SGD()
  ),
}


@pytest.mark.parametrize('complaint', REFUSED)
def test_optimizers_that_need_all_gradients_are_refused(complaint):
  with pytest.raises(ValueError, match=complaint):
    hybrid_optimizers.check(REFUSED[complaint]())


def test_others_are_not_refused():
  hybrid_optimizers.check(keras.optimizers.AdamW(clipnorm=0.5))
