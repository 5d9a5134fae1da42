"""SavedModels that Keras has exported, made fit for any process.

A function that reads a variable on its ps has the ps' name on operations, which
TensorFlow writes to the file: no other cluster could run it. And Keras tracks
variables twice, as its own and as TensorFlow's, so that each has two values in
the file, of which functions use the first.
"""

from collections.abc import Callable
import os
import pathlib
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from tfps._utils import threads

_FILE = 'saved_model.pb'
_UNUSED = '_all_variables'


def remove_devices(directory: str | os.PathLike[str]) -> None:
  """Removes names of devices from the functions of a SavedModel.

  Args:
    directory: the SavedModel, which is changed.
  """
  path = pathlib.Path(directory, _FILE)
  model = saved_model_pb2.SavedModel.FromString(path.read_bytes())
  for graph in model.meta_graphs:
    for node in graph.graph_def.node:
      node.device = ''
    for function in graph.graph_def.library.function:
      for node in function.node_def:
        node.device = ''
  path.write_bytes(model.SerializeToString(deterministic=True))


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
