"""What the user says about updates."""

import keras
import pytest

from tfps import updates


@pytest.mark.parametrize(
  ('make', 'message'),
  [
    (lambda: updates.Accumulate(0), 'Accumulate: n is 0'),
    (lambda: updates.Accumulate(2.0), r'Accumulate: n is 2\.0'),
    (lambda: updates.Accumulate(True), 'Accumulate: n is True'),
    (lambda: updates.Accumulate('8'), "Accumulate: n is '8'"),
    (lambda: updates.LocalSteps(-1, 0.1), 'LocalSteps: n is -1'),
    (lambda: updates.LocalSteps(8, 0.0), 'inner_learning_rate is 0.0'),
    (lambda: updates.LocalSteps(8, -1), 'inner_learning_rate is -1'),
    (lambda: updates.LocalSteps(8, float('nan')), 'inner_learning_rate is nan'),
    (lambda: updates.LocalSteps(8, float('inf')), 'inner_learning_rate is inf'),
    (lambda: updates.LocalSteps(8, None), 'inner_learning_rate is None'),
    (lambda: updates.LocalSteps(8, 0.1, outer='adam'), "outer is 'adam'"),
    (
      lambda: updates.LocalSteps(
        8, 0.1, outer=keras.optimizers.SGD(loss_scale_factor=2.0)
      ),
      'by the scale of a loss',
    ),
    (
      lambda: updates.LocalSteps(
        8,
        0.1,
        outer=keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()),
      ),
      'by the scale of a loss',
    ),
  ],
)
def test_bad_arguments_are_named(make, message):
  with pytest.raises(ValueError, match=message):
    make()


def test_each_says_how_many_steps_make_an_update():
  assert updates.Async().steps_per_update == 1
  assert updates.Accumulate(4).steps_per_update == 4
  assert updates.LocalSteps(8, 0.1).steps_per_update == 8


def test_an_outer_optimizer_is_made_as_it_was():
  like = keras.optimizers.SGD(0.7, momentum=0.9, nesterov=True)
  policy = updates.LocalSteps(8, 0.1, outer=like)
  like.learning_rate.value._handle = None  # as after connecting to a cluster
  made = policy.make_outer()
  assert made is not like
  assert float(made.learning_rate) == pytest.approx(0.7)
  assert (made.momentum, made.nesterov) == (0.9, True)
