"""Keras variables whose additions and lookups take place on the ps."""

import functools
import sys
import types
from typing import Any

import tensorflow as tf

from tfps._compat import reads


def is_metric(kwargs: Any) -> bool:
  """Returns whether a variable creator's arguments are of a Keras metric.

  Keras gives initial values as functions of its own, which distinguishes its
  variables from those of legacy Keras and of users.

  Args:
    kwargs: the arguments of the variable creator.
  """
  made_by = getattr(kwargs.get('initial_value'), '__module__', None) or ''
  on_read = tf.VariableSynchronization.ON_READ
  return (
    made_by.startswith('keras.src') and kwargs.get('synchronization') == on_read
  )


def is_seed_state(kwargs: Any) -> bool:
  """Returns whether a variable creator's arguments are of a seed generator.

  Every step reads and writes its state, and each worker needs random numbers of
  its own, so it does not belong on a ps. Only the name identifies it.

  Args:
    kwargs: the arguments of the variable creator.
  """
  return str(kwargs.get('name')) == 'seed_generator_state'


def set_weights_together() -> None:
  """Lets layers with a method `set_own_weights` set what they have by it.

  `Layer.set_weights` sets variables one by one, and compares the shape of each
  with its value's; those of tables that grow depend on each other, and have no
  fixed shape. The method gets the values by the ids of Keras' variables, and
  the optimizer if a model is set.
  """
  if 'keras' in sys.modules:
    _replace_set_weights()


@functools.cache
def _replace_set_weights() -> None:
  import keras

  theirs = keras.layers.Layer.set_weights

  @functools.wraps(theirs)
  def set_weights(self: Any, weights: Any) -> None:
    apart = [
      layer
      for layer in self._flatten_layers()
      if hasattr(layer, 'set_own_weights')
    ]
    variables = self.weights
    if not apart or len(variables) != len(weights):
      theirs(self, weights)
      return
    values = {id(v): w for v, w in zip(variables, weights, strict=True)}
    own = {id(variable) for layer in apart for variable in layer.weights}
    rest = [variable for variable in variables if id(variable) not in own]
    # Of the layer, it asks for no more.
    others = types.SimpleNamespace(name=self.name, weights=rest)
    theirs(others, [values[id(variable)] for variable in rest])
    for layer in apart:
      layer.set_own_weights(values, getattr(self, 'optimizer', None))

  keras.layers.Layer.set_weights = set_weights


def add_on_ps() -> None:
  """Makes `keras.Variable.assign_add` and `assign_sub` additions on the ps.

  In Keras they read, add and write, so that workers undo each other's steps in
  `optimizer.iterations`. Variables that our strategies have not put on a ps
  keep Keras' methods. Does nothing until Keras is imported.
  """
  if 'keras' in sys.modules:
    _replace_additions()


def look_up_on_ps() -> None:
  """Makes `keras.ops.take`, and so `Embedding`, read only the rows it needs.

  In Keras it reads the whole table, and again to get its number of rows. Tables
  that our strategies have not put on a ps keep Keras' function. So do ragged
  indices; see `gathers`. Does nothing until Keras is imported.
  """
  if 'keras' in sys.modules:
    _replace_take()


def regularize_on_ps() -> None:
  """Makes the ps compute regularizers of what the worker does not have.

  Keras computes the losses of a layer's weights from their values, which would
  have to be sent. Does nothing until Keras is imported.
  """
  if 'keras' in sys.modules:
    _replace_regularization()


@functools.cache
def _replace_regularization() -> None:
  from keras.src.backend.common import stateless_scope
  from keras.src.layers import layer

  theirs = layer.Layer._get_regularization_losses

  @functools.wraps(theirs)
  def losses(self: Any) -> list[Any]:
    reader = reads.reader()
    if reader is None or stateless_scope.in_stateless_scope():
      return list(theirs(self))
    return [
      _loss(reader, variable)
      for variable in self.trainable_weights
      if variable.regularizer is not None
    ]

  layer.Layer._get_regularization_losses = losses


def _loss(reader: reads.Reader, variable: Any) -> Any:
  """Returns the regularization loss of a variable, computed on ps if may be."""
  function = variable.regularizer
  shards = getattr(variable._value, 'variables', [variable._value])
  if len(shards) == 1 or _is_additive(function):
    terms = [reader.compute_on_ps(shard, function) for shard in shards]
    if all(term is not None for term in terms):
      return terms[0] if len(terms) == 1 else tf.add_n(terms)
  return function(variable)


def _is_additive(regularizer: Any) -> bool:
  """Returns whether the loss of all rows is the sum of those of their parts."""
  from keras.src import regularizers

  kinds = (regularizers.L1, regularizers.L2, regularizers.L1L2)
  return type(regularizer) in kinds


@functools.cache
def _replace_take() -> None:
  from keras.src import backend

  theirs = backend.numpy.take

  @functools.wraps(theirs)
  def take(x: Any, indices: Any, axis: int | None = None) -> Any:
    table = _table_on_ps(x)
    is_ragged = isinstance(indices, tf.RaggedTensor)
    if table is None or axis != 0 or is_ragged:
      return theirs(x, indices, axis)
    if isinstance(indices, tf.SparseTensor):
      # As in Keras, what is not given is looked up as 0.
      indices = tf.sparse.to_dense(indices)
    return x._maybe_autocast(_rows(table, backend.convert_to_tensor(indices)))

  backend.numpy.take = take


def _table_on_ps(x: Any) -> Any:
  """Returns the value of a Keras variable that is on ps, or None."""
  from keras.src import backend
  from keras.src.backend.common import stateless_scope

  if (
    not isinstance(x, backend.Variable) or stateless_scope.in_stateless_scope()
  ):
    return None
  return x._value if reads.is_on_ps(x._value) else None


def _rows(table: Any, indices: tf.Tensor) -> tf.Tensor:
  """Reads rows of a table; each distinct row, and its gradient, is sent once.

  Negative indices count from the end, as in Keras.
  """
  if indices.dtype.is_integer and indices.dtype.size < 4:
    indices = tf.cast(indices, tf.int32)  # that has the number of rows, too
  zero, number = (
    reads.constant(value, indices.dtype) for value in (0, table.shape[0])
  )
  indices = tf.where(indices < zero, indices + number, indices)
  return reads.read_distinct(table.sparse_read, indices, table.shape[1:])


@functools.cache
def _replace_additions() -> None:
  from keras.src import backend
  from keras.src.backend.common import stateless_scope

  def replace(name: str) -> None:
    theirs = getattr(backend.Variable, name)

    @functools.wraps(theirs)
    def ours(self: Any, value: Any) -> Any:
      # The value itself: the public property may cast it to another dtype.
      own = self._value
      if stateless_scope.in_stateless_scope() or not reads.is_on_ps(own):
        return theirs(self, value)
      if isinstance(value, int | float) and own.shape.rank == 0:
        with tf.device(own.device):  # so that no tensor is sent
          return getattr(own, name)(tf.constant(value, own.dtype))
      return getattr(own, name)(self._convert_to_tensor(value, own.dtype))

    setattr(backend.Variable, name, ours)

  replace('assign_add')
  replace('assign_sub')
