"""How Keras' variables in shards are written to checkpoints."""

import functools
import sys
from typing import Any

import tensorflow as tf


def save_by_shards() -> None:
  """Has Keras' variables in shards saved like any variable in shards.

  What a Keras variable tells checkpoints is what its value tells them in the
  newer of TensorFlow's two ways. Shards use the older one, since of several
  parts of a value the newer one restores only the first; see
  `saveable_objects_from_trackable`. TensorFlow goes by the class. Does nothing
  until Keras is imported.
  """
  if 'keras' in sys.modules:
    _replace_initialize()


@functools.cache
def _replace_initialize() -> None:
  from keras.src import backend

  class Sharded(backend.Variable):
    """A variable of which each shard is read and written on its own."""

    def _gather_saveables_for_checkpoint(self) -> Any:
      return self._value._gather_saveables_for_checkpoint()

  theirs = backend.Variable._initialize

  @functools.wraps(theirs)
  def initialize(self: Any, value: Any) -> None:
    theirs(self, value)
    if type(self) is backend.Variable and _is_sharded(self._value):
      self.__class__ = Sharded

  backend.Variable._initialize = initialize


def _is_sharded(value: Any) -> bool:
  return isinstance(value, tf.__internal__.distribute.ShardedVariable)
