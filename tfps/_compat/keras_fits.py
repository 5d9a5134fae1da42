"""Functions that are called when a `fit` ends, also by an error.

Keras calls the callbacks' `on_train_end` only if there was none.
"""

from collections.abc import Callable
import functools
from typing import Any
import weakref


def at_end(model: Any, function: Callable[[], object]) -> None:
  """Calls a function once the present `fit` of a model has ended.

  Args:
    model: a Keras model; does nothing if `take_part` came after its `fit`.
    function: raises nothing.
  """
  _functions().setdefault(model, []).append(function)


@functools.cache
def take_part() -> None:
  """Replaces `fit` of Keras' trainer."""
  from keras.src.backend.tensorflow import trainer

  theirs = trainer.TensorFlowTrainer.fit

  @functools.wraps(theirs)
  def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
    try:
      return theirs(self, *args, **kwargs)
    finally:
      for function in _functions().pop(self, ()):
        function()

  trainer.TensorFlowTrainer.fit = fit


@functools.cache
def _functions() -> weakref.WeakKeyDictionary[Any, list[Callable[[], object]]]:
  return weakref.WeakKeyDictionary()
