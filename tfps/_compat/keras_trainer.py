"""Dispatch of Keras' trainer to functions of our strategies.

Keras 3 does not know strategies whose steps run elsewhere. Its `fit` need not:
it calls a function with an iterator, and reads metrics at the end. So the
functions are ours, and reading metrics waits for steps under way; `fit`,
`evaluate`, `predict` and all callbacks are Keras' own.

A strategy that replaces them names a module as `keras_functions`, which has
`input_of`, `dataset_of` and `build`, and may have `TrainFunction`,
`TestFunction` and `PredictFunction`. Models of other strategies, and of none,
keep Keras' methods.
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import functools
import importlib
import sys
from typing import Any

import tensorflow as tf

# Arguments of `fit` and `evaluate` that Keras ignores beside a `DataAdapter`.
_BESIDE_X = ('y', 'sample_weight', 'class_weight')
# The methods that call `train_function` and so on.
_CALLERS = {'train': 'fit', 'test': 'evaluate', 'predict': 'predict'}


def take_part() -> None:
  """Replaces methods of Keras' trainer, once Keras is imported."""
  if 'keras' in sys.modules:
    _replace_methods()


def _functions(strategy: Any) -> Any:
  """Returns the module that a strategy names, or None."""
  name = getattr(strategy, 'keras_functions', None)
  return importlib.import_module(name) if name else None


@functools.cache
def _replace_methods() -> None:
  from keras.src.backend.tensorflow import trainer
  from keras.src.trainers import trainer as base

  theirs = trainer.TensorFlowTrainer
  _replace(theirs, 'make_train_function', _maker('train', 'TrainFunction'))
  _replace(theirs, 'make_test_function', _maker('test', 'TestFunction'))
  _replace(
    theirs, 'make_predict_function', _maker('predict', 'PredictFunction')
  )
  _replace(theirs, 'get_metrics_result', _drained)
  _replace(theirs, 'reset_metrics', _drained)
  # Keras compares with this one whether a model has a `compile` of its own.
  _replace(base.Trainer, 'compile', _in_scope)
  for kind, name in _CALLERS.items():
    _replace(theirs, name, functools.partial(_ended, f'{kind}_function'))
  _replace(theirs, '_maybe_symbolic_build', _restarting)
  _replace(theirs, '_symbolic_build', _building)
  _replace(trainer, 'potentially_ragged_concat', _waiting)
  _replace(trainer, 'convert_to_np_if_not_ragged', _waiting)
  trainer.TFEpochIterator = _epoch_iterator(trainer.TFEpochIterator)


def _replace(owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
  method = getattr(owner, name)
  setattr(owner, name, functools.wraps(method)(wrap(method)))


def _maker(kind: str, name: str) -> Callable[[Any], Any]:
  """Wraps `make_train_function` and the like."""

  def wrap(theirs: Any) -> Any:
    def make(self: Any, force: bool = False) -> Any:
      ours = getattr(_functions(self._distribute_strategy), name, None)
      if ours is None:
        return theirs(self, force)
      attribute = f'{kind}_function'
      if getattr(self, attribute) is None or force:
        setattr(self, attribute, ours(self))
      return getattr(self, attribute)

    return make

  return wrap


def _in_scope(theirs: Any) -> Any:
  """Wraps `compile`: what it makes of names belongs to the model's strategy."""

  def method(self: Any, *args: Any, **kwargs: Any) -> Any:
    is_ours = _functions(self._distribute_strategy) is not None
    strategy = self._distribute_strategy if is_ours else None
    with strategy.scope() if strategy else contextlib.nullcontext():
      return theirs(self, *args, **kwargs)

  return method


def _restarting(theirs: Any) -> Any:
  """Wraps the method that takes a batch to build a model of ours.

  Keras resets the iterator only afterwards. In the second evaluation of `fit`
  it stands where the first one has left it, which may be at its end.
  """

  def method(self: Any, iterator: Any = None, data_batch: Any = None) -> Any:
    getattr(iterator, 'restart', lambda: None)()
    return theirs(self, iterator, data_batch)

  return method


def _building(theirs: Any) -> Any:
  """Wraps the method that builds a model for its first batch."""

  def method(self: Any, iterator: Any = None, data_batch: Any = None) -> Any:
    build = getattr(_functions(self._distribute_strategy), 'build', None)
    if build is None or data_batch is None:
      return theirs(self, iterator, data_batch)
    return build(functools.partial(theirs, self), self, data_batch)

  return method


def wants_shapes_only() -> bool:
  """Returns whether Keras calls layers only to see what they would return.

  Keras does not say so to layers, which trace all that they would do.
  """
  from keras.src.backend.common import symbolic_scope

  return bool(symbolic_scope.in_symbolic_scope())


def build_by_values(model: Any, batch: Any) -> None:
  """Builds a model, its metrics and its loss, in a graph that is thrown away.

  Keras itself makes a dense symbolic tensor of each input, of whatever kind.

  Args:
    model: a compiled model.
    batch: tensors of any kind: inputs, and targets and weights if there are.
  """
  from keras.src import backend
  from keras.src.trainers.data_adapters import data_adapter_utils

  x, y, weight = data_adapter_utils.unpack_x_y_sample_weight(batch)
  y_pred = backend.compute_output_spec(model, x, training=False)
  if model._compile_metrics is not None and not model._compile_metrics.built:
    backend.compute_output_spec(
      model.compute_metrics, x, y, y_pred, sample_weight=weight
    )
  if model._compile_loss is not None and not model._compile_loss.built:
    backend.compute_output_spec(
      model._compute_loss, x, y, y_pred, sample_weight=weight, training=False
    )


def _drained(theirs: Any) -> Any:
  """Wraps a method that reads or resets metrics: waits for steps under way."""

  def method(self: Any) -> Any:
    if tf.executing_eagerly():
      for function in (self.train_function, self.test_function):
        getattr(function, 'drain', lambda: None)()
    return theirs(self)

  return method


def _ended(attribute: str, theirs: Any) -> Any:
  """Wraps `fit` and the like: ends its function, also if an error is raised."""

  def method(self: Any, *args: Any, **kwargs: Any) -> Any:
    try:
      return theirs(self, *args, **kwargs)
    finally:
      getattr(getattr(self, attribute), 'leave', lambda: None)()

  return method


def _waiting(theirs: Any) -> Any:
  """Wraps a function of what `predict_function` has returned: waits for it."""

  def function(*args: Any, **kwargs: Any) -> Any:
    (outputs,) = [*args, *kwargs.values()]
    if isinstance(outputs, list):
      return theirs([_waited_for(output) for output in outputs])
    return theirs(_waited_for(outputs))

  return function


def _waited_for(output: Any) -> Any:
  wait = getattr(output, 'tfps_wait', None)
  return output if wait is None else wait()


def _epoch_iterator(theirs: Any) -> Any:
  """Makes a `TFEpochIterator` that leaves datasets to our strategies."""

  class EpochIterator(theirs):
    def __init__(
      self, distribute_strategy: Any = None, *args: Any, **kwargs: Any
    ) -> None:
      functions = _functions(distribute_strategy)
      if functions is None:
        super().__init__(distribute_strategy, *args, **kwargs)
        return
      kwargs['x'] = functions.input_of(
        distribute_strategy,
        kwargs['x'],
        kwargs.get('steps_per_epoch'),
        {name: kwargs[name] for name in _BESIDE_X if name in kwargs},
      )
      super(theirs, self).__init__(*args, **kwargs)
      self._distribute_strategy = distribute_strategy
      self._distributed_dataset = functions.dataset_of(
        distribute_strategy, self.data_adapter
      )

    def tf_sync(self) -> None:
      # Our functions return only once they are done. A wait here could only
      # fail, for values deleted on a ps that has just been lost.
      if _functions(self._distribute_strategy) is None:
        super().tf_sync()

    @contextlib.contextmanager
    def catch_stop_iteration(self) -> Iterator[None]:
      with super().catch_stop_iteration():
        yield
      # Otherwise the next epoch would end after as many batches as this one.
      if self._has_own_epochs:
        self._num_batches = None

    def _interrupted_warning(self) -> None:
      if not self._has_own_epochs:  # they end as the dataset says
        super()._interrupted_warning()

    @property
    def _has_own_epochs(self) -> bool:
      return getattr(self._distributed_dataset, 'has_own_epochs', False)

    def restart(self) -> None:
      if _functions(self._distribute_strategy) is not None:
        self._current_iterator = None

    def reset(self) -> None:
      # Called after the first batch was read to build the model. A generator
      # would lose that batch and the prefetched ones.
      put_back = getattr(self._distributed_dataset, 'put_back', None)
      if put_back is not None:
        put_back()
      super().reset()

  return EpochIterator
