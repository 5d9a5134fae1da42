"""What `tfps.shared_variables` needs of TensorFlow's insides."""

from typing import Any

import tensorflow as tf
from tensorflow.python.ops import handle_data_util
from tensorflow.python.ops import resource_variable_ops


class NamedVariable(resource_variable_ops.BaseResourceVariable):
  """A variable whose memory has a name and outlives this object.

  `tf.Variable` takes no shared name in eager mode: its memory is private to
  this process and goes with the object. Its base class takes any handle. (And
  its metaclass takes nothing but keyword arguments.)

  Attributes:
    shared_name: of the memory.
  """

  def __init__(
    self, *, handle: tf.Tensor, name: str, shape: Any, **kwargs: Any
  ) -> None:
    super().__init__(
      handle=handle,
      name=name,
      handle_name=name,
      unique_id=name,
      shape=shape,
      in_graph_mode=False,
      **kwargs,
    )
    self.shared_name = name


def handle(name: str, *, shape: Any, dtype: tf.DType) -> tf.Tensor:
  """A handle of the variable of that name on the current device."""
  made = tf.raw_ops.VarHandleOp(dtype=dtype, shape=shape, shared_name=name)
  # Within a function, reads take their shape and dtype from here.
  data = handle_data_util.create_handle_data(tf.TensorShape(shape), dtype)
  handle_data_util.set_handle_data(made, data)
  return made
