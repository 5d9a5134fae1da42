"""Objects that this process made before it connected to a cluster.

Connecting gives the devices of this process new names and new memory. Tensors
can be copied from the devices before, and a dataset is a tensor: it is copied
when it is used again. The memory of variables, tables and iterators cannot be
reached any more. TensorFlow's errors name the device alone, which tells nobody
what to do.
"""

from collections.abc import Iterable
from collections.abc import Iterator
import functools
import gc
import re
import sys
import types
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops
from tensorflow.python.eager import context

from tfps._compat import captured_datasets
from tfps._compat import error_sources

# The devices of a process that has not connected, in errors.
_IS_EARLIER = re.compile(
  r'/job:localhost/\S* unknown device|target /job:localhost/\S* not found'
  r'|(?P<python>PyFunc\b.* explicitly assigned to /job:localhost/)'
)


@functools.cache
def take_over() -> None:
  """Renews datasets when they are used, and names other objects in errors.

  Repeated calls do nothing.
  """
  datasets: Any = dataset_ops.DatasetV2
  theirs = datasets._variant_tensor
  datasets._variant_tensor = theirs.getter(_renewed_variant)
  error_sources.explain(tf.errors.InvalidArgumentError, _explained)


def _explained(message: str, frame: types.FrameType) -> str:
  found = _IS_EARLIER.search(message)
  if not found:
    return message
  owners = _owners(error_sources.inputs(frame))
  if found['python']:
    owners = ['a dataset with Python code (from_generator, py_function)']
  return _explanation(owners, error_sources.users(frame))


def _renewed_variant(dataset: Any) -> Any:
  """Returns a dataset's tensor, on a device that this process has now."""
  variant = dataset._variant_tensor_attr
  if _is_earlier(variant):
    if owners := _owners(_captures(dataset)):
      users = [repr(dataset), *error_sources.users(sys._getframe(1))]
      text = _explanation(owners, users)
      raise tf.errors.InvalidArgumentError(None, None, text)
    with tf.init_scope():
      dataset._variant_tensor_attr = variant = tf.identity(variant)
  return captured_datasets.usable(variant)


def _is_earlier(value: Any) -> bool:
  """Returns whether a value is a tensor from before this process connected."""
  connected = context.get_server_def()
  return (
    isinstance(value, tf.__internal__.EagerTensor)
    and '/job:localhost/' in value.device
    and connected is not None
    and connected.job_name != 'localhost'
  )


def _captures(dataset: Any) -> Iterator[Any]:
  """Yields the tensors that a dataset's functions and inputs have captured."""
  for function in dataset._functions():
    yield from function.function.captured_inputs
  for each in dataset._inputs():
    yield from _captures(each)


def _owners(tensors: Iterable[Any]) -> list[str]:
  """Returns descriptions of the earlier objects that tensors belong to."""
  found = {}
  for tensor in tensors:
    if _is_earlier(tensor) and tensor.dtype in (tf.resource, tf.variant):
      owner = getattr(tensor, '_parent_trackable', lambda: None)()
      found[id(tensor if owner is None else owner)] = _described(owner)
  return list(found.values())


def _described(owner: Any) -> str:
  if isinstance(owner, tf.Variable):
    return f'the variable {owner.name!r}'
  if owner is None:
    return 'an iterator or other resource'
  layers = ', '.join(f'{layer.name!r}' for layer in _layers_with(owner))
  return f'a {type(owner).__name__}{layers and f" of the layer {layers}"}'


def _layers_with(table: Any) -> list[Any]:
  """Returns the layers that have a table, which does not know them."""
  keras = sys.modules.get('keras')
  return [
    each
    for each in gc.get_objects()
    if keras is not None
    and issubclass(type(each), keras.Layer)
    and any(value is table for value in vars(each).values())
  ]


def _explanation(owners: list[str], users: list[str]) -> str:
  what = ', '.join(owners) or 'an object'
  used = f' It is used by {", in ".join(users)}.' if users else ''
  return (
    f'Made before the strategy, and not usable since: {what}.{used} Make the '
    'strategy first, which connects this process to the cluster, and then '
    'variables, models, layers with a vocabulary, iterators, and the functions '
    'and datasets that use them.'
  )
