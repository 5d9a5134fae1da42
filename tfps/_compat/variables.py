"""Classes of TensorFlow's sharded variables that are not public."""

from tensorflow.python.distribute import sharded_variable
from tensorflow.python.framework import composite_tensor_gradient
from tensorflow.python.saved_model import save_context

# `tf.GradientTape` asks a composite tensor's `__composite_gradient__`, which
# must be of this class, what to differentiate by. It is not public.
CompositeTensorGradient = composite_tensor_gradient.CompositeTensorGradient

# A sharded variable that enters a `tf.function` is flattened and rebuilt by its
# spec, which must make our class.
ShardedVariableSpec = sharded_variable.ShardedVariableSpec


def is_saving() -> bool:
  """Returns whether a SavedModel is being saved, which merges shards."""
  return bool(save_context.in_save_context())
