"""What the strategies need of Keras' insides."""

import functools
import sys
from typing import Any

import tensorflow as tf


def is_metric(kwargs: Any) -> bool:
  """Whether a variable creator's arguments are a Keras metric's variable.

  Keras gives initial values as functions of its own, which tells its variables
  from those of legacy Keras and of users.
  """
  made_by = getattr(kwargs.get('initial_value'), '__module__', None) or ''
  on_read = tf.VariableSynchronization.ON_READ
  return (
    made_by.startswith('keras.src') and kwargs.get('synchronization') == on_read
  )


def is_seed_state(kwargs: Any) -> bool:
  """Whether a variable creator's arguments are a seed generator's state.

  Every step reads and writes it, and each worker needs random numbers of its
  own, so it does not belong on a ps. Nothing but its name tells it.
  """
  return str(kwargs.get('name')) == 'seed_generator_state'


def add_on_ps() -> None:
  """Makes `keras.Variable.assign_add` and `assign_sub` additions on the ps.

  In Keras they read, add and write, so that workers undo each other's steps in
  `optimizer.iterations`. Variables that are not on a ps go Keras' own way.
  Does nothing until Keras is imported.
  """
  if 'keras' in sys.modules:
    _replace_additions()


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
      if stateless_scope.in_stateless_scope() or not _is_on_ps(own):
        return theirs(self, value)
      return getattr(own, name)(self._convert_to_tensor(value, own.dtype))

    setattr(backend.Variable, name, ours)

  replace('assign_add')
  replace('assign_sub')


def _is_on_ps(value: Any) -> bool:
  device = getattr(value, 'device', None)
  return bool(device) and tf.DeviceSpec.from_string(device).job == 'ps'
