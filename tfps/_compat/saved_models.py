"""SavedModels that are fit for any process.

A function that reads a variable on its ps has the ps' name on operations, which
TensorFlow writes to the file: no other cluster could run it. And Keras tracks
variables twice, as its own and as TensorFlow's, so that each has two values in
the file, of which functions use the first. And a function may call one of a
server's own.
"""

from collections.abc import Callable
from collections.abc import Iterator
import functools
import os
from typing import Any

import tensorflow as tf
from tensorflow.python.saved_model import save as tf_save

from tfps._compat import host_functions
from tfps._utils import threads

_UNUSED = '_all_variables'
_JOB = '/job:'


@functools.cache
def take_part() -> None:
  """Leaves names of tasks out of all SavedModels that are written."""
  theirs = tf_save._build_meta_graph

  @functools.wraps(theirs)
  def build(*args: Any, **kwargs: Any) -> Any:
    found = theirs(*args, **kwargs)
    for node in _nodes(found[0].graph_def):
      if node.op == 'PyFunc' and host_functions.is_call(node):
        _make_gather(node)
      if _JOB in node.device:
        node.device = ''
    return found

  tf_save._build_meta_graph = build


@functools.cache
def sign_what_is_taken() -> None:
  """Leaves out the signature of a model for float32 if it refuses that type.

  Keras makes it for each model without `keras.Input`, of whatever types its
  inputs are, beside the signatures that are asked for. Failing, it would take
  `train_function` from the model, and the tables of `StringLookup` and the like
  from what is saved.
  """
  from keras.src.backend.tensorflow import layer

  theirs = layer.TFLayer._default_save_signature.fget

  def signature(self: Any) -> Any:
    function = theirs(self)
    if function is not None and getattr(self, 'inputs', None) is None:
      try:
        function.get_concrete_function()
      except TypeError:
        return None
    return function

  layer.TFLayer._default_save_signature = property(signature)


def _nodes(graph: Any) -> Iterator[Any]:
  yield from graph.node
  for function in graph.library.function:
    yield from function.node_def


def _make_gather(node: Any) -> None:
  """Replaces a call that reads rows of a variable by a gather from it.

  In a file, a variable has all rows, and processes have no functions of ours.
  """
  found = host_functions.gather_of(node)
  if found is None:
    raise ValueError(
      f'{node.name} calls {node.attr["token"].s!r}, a function of servers of '
      'tfps, which no SavedModel contains. Leave it out of what is saved.'
    )
  handle, rows = found
  dtype = node.attr['Tout'].list.type[0]
  controls = [each for each in node.input if each.startswith('^')]
  node.op = 'ResourceGather'
  node.ClearField('attr')
  node.input[:] = [node.input[handle], node.input[rows], *controls]
  node.attr['dtype'].type = dtype
  node.attr['Tindices'].type = tf.int64.as_datatype_enum


def load(directory: str | os.PathLike[str]) -> Any:
  """Returns a SavedModel of Keras, without the values that are not used.

  Args:
    directory: the SavedModel.

  Raises:
    tf.errors.OpError: it cannot be read.
    OSError: it is not there.
  """
  model = _apart(lambda: tf.saved_model.load(os.fspath(directory)))
  if hasattr(model, _UNUSED):
    setattr(model, _UNUSED, [])
  return model


def save(model: Any, directory: str | os.PathLike[str]) -> None:
  """Saves what `load` has returned, with the variables' present values.

  Args:
    model: the loaded SavedModel.
    directory: where.

  Raises:
    tf.errors.OpError: it cannot be written.
  """
  _apart(
    lambda: tf.saved_model.save(
      model, os.fspath(directory), signatures=model.signatures
    )
  )


def _apart(function: Callable[[], Any]) -> Any:
  """Calls a function outside of strategies' scopes, on this process' CPU.

  In a scope, variables of a SavedModel would be made on the ps. A scope is one
  of its thread.
  """

  def call() -> Any:
    with tf.device('/device:CPU:0'):
      return function()

  return threads.begin('tfps-saved-model', call).result()
