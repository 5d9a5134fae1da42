"""Building of a model that `fit` or `evaluate` is the first to call.

Keras builds it by symbolic tensors if there is a strategy, and where the step
is traced if there is none.
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfps._compat import keras_trainer


def build(own: Callable[..., Any], model: keras.Model, batch: Any) -> None:
  """Builds a model, its metrics, its loss and its optimizer.

  A model without a `call`, such as one of two networks with a `train_step`, is
  built where its step is traced.

  Args:
    own: Keras' own method, which takes all inputs for dense tensors.
    model: a compiled model.
    batch: the first batch of its input.

  Raises:
    ValueError: the optimizer was made outside of the strategy's scope.
  """
  _check(model)
  if type(model).call is keras.Model.call:
    return
  if any(map(_is_composite, keras.tree.flatten(batch))):
    keras_trainer.build_by_values(model, batch)
  own(data_batch=batch)


def _check(model: keras.Model) -> None:
  """Checks that a model's optimizer is of the model's strategy."""
  optimizer, strategy = model.optimizer, model.distribute_strategy
  inner = getattr(optimizer, 'inner_optimizer', None)  # that a scaler wraps
  for each in filter(None, (optimizer, inner)):
    if getattr(each, '_distribution_strategy', strategy) is not strategy:
      raise ValueError(
        f'{model.name}: {each.name} was made outside of the scope of the '
        "model's strategy, where its variables are not on the ps. Make the "
        'optimizer in strategy.scope().'
      )


def _is_composite(leaf: Any) -> bool:
  return isinstance(leaf, tf.RaggedTensor | tf.SparseTensor)
