"""The variables of `HybridStrategy`."""

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfps._compat import keras_variables
from tfps.updates.allreduce import local_state as local_state_lib
from tfps.variables import growing
from tfps.variables import hybrid_placement
from tfps.variables import shared_extended
from tfps.variables import variable_types


class Extended(shared_extended.Extended):
  """Creates some variables on each worker instead of the ps.

  Attributes:
    choose: chooses a variable's place; set it before the first is created.
    local_state: the variables that are on this worker.
  """

  choose: Callable[[hybrid_placement.Description], str]

  def __init__(self, *args: Any, **kwargs: Any) -> None:
    super().__init__(*args, **kwargs)
    self.local_state = local_state_lib.LocalState()

  def _create_variable(self, next_creator: Any, **kwargs: Any) -> Any:
    is_beside = self.local_state.has(kwargs.get('colocate_with'))
    if not (is_beside or self._is_to_be_held(kwargs)):
      return super()._create_variable(next_creator, **kwargs)
    kwargs['per_worker_variable'] = True
    variable = super()._create_variable(next_creator, **kwargs)
    self.local_state.variables.append(variable)
    return variable

  def make_count(self) -> tf.Variable:
    """Creates the counter of steps, which is on this worker."""
    with tf.init_scope(), tf.device(None):
      count = tf.Variable(
        0, dtype=tf.int64, trainable=False, name='tfps/hybrid/steps'
      )
    self.local_state.variables.append(count)
    return count

  def _is_to_be_held(self, kwargs: Mapping[str, Any]) -> bool:
    if kwargs.get('colocate_with') is not None or self._is_local(kwargs):
      return False
    if growing.place() is not None:
      return False
    is_counter = kwargs.get('name') == keras_variables.COUNTER
    if is_counter and keras_variables.is_making():
      return True
    if kwargs.get('trainable') is False or not _is_floating(kwargs):
      return False
    return self.choose(_description(kwargs)) == hybrid_placement.WORKERS


def _description(kwargs: Mapping[str, Any]) -> hybrid_placement.Description:
  known = variable_types.with_type(kwargs)
  shape = tf.TensorShape(known.get('shape'))
  name = str(kwargs.get('name') or 'Variable')
  return hybrid_placement.Description(
    name=name,
    shape=tuple(shape) if shape.is_fully_defined() else None,
    num_bytes=variable_types.num_bytes(known),
    is_table=name == keras_variables.TABLE and shape.rank == 2,
  )


def _is_floating(kwargs: Mapping[str, Any]) -> bool:
  dtype = variable_types.with_type(kwargs).get('dtype')
  return dtype is not None and bool(tf.as_dtype(dtype).is_floating)
