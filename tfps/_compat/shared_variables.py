"""Variables whose memory has a name on its device."""

import dataclasses
from typing import Any
import weakref

import tensorflow as tf
from tensorflow.python.ops import handle_data_util
from tensorflow.python.ops import resource_variable_ops


class NamedVariable(resource_variable_ops.BaseResourceVariable):
  """A variable whose memory has a name and outlives this object.

  `tf.Variable` takes no shared name in eager mode: its memory is private to
  this process and freed with the object. Its base class takes any handle. (And
  its metaclass takes only keyword arguments.)

  Args:
    memory: its name, and the container that it is in.
    **kwargs: as TensorFlow's.

  Attributes:
    memory: the same.
  """

  def __init__(
    self,
    *,
    memory: 'Memory',
    name: str,
    shape: Any,
    dtype: tf.DType,
    **kwargs: Any,
  ) -> None:
    super().__init__(
      handle=memory.handle(shape=shape, dtype=dtype),
      name=name,
      handle_name=name,
      unique_id=memory.name,
      shape=shape,
      dtype=dtype,
      in_graph_mode=False,
      **kwargs,
    )
    self.memory = memory
    # As of TensorFlow's own variables: errors name the owners of handles.
    self.handle._parent_trackable = weakref.ref(self)


@dataclasses.dataclass(frozen=True)
class Memory:
  """Memory that a device keeps under a name.

  Attributes:
    name: unique in its container.
    container: group of resources that a server can empty; '' is its default.
  """

  name: str
  container: str = ''

  def handle(self, *, shape: Any, dtype: tf.DType) -> tf.Tensor:
    """Returns a handle of the variable on the current device."""
    return handle(self.name, shape=shape, dtype=dtype, container=self.container)


def handle(
  name: str, *, shape: Any, dtype: tf.DType, container: str = ''
) -> tf.Tensor:
  """Returns a handle of the variable of that name on the current device."""
  made = tf.raw_ops.VarHandleOp(
    dtype=dtype, shape=shape, shared_name=name, container=container
  )
  # Within a function, reads take their shape and dtype from here.
  data = handle_data_util.create_handle_data(tf.TensorShape(shape), dtype)
  handle_data_util.set_handle_data(made, data)
  return made
