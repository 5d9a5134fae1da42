"""Datasets that are used in a function which another task executes.

A function captures a dataset as a tensor of this process, which cannot be sent.
The graph of a dataset can: it has the values that the dataset was made from,
and those of the tables and variables that it reads.
"""

from collections.abc import Iterator
import contextlib
import threading
from typing import Any

import tensorflow as tf

from tfps import errors
from tfps._compat import host_functions

_MAX_BYTES = 2**30  # a graph has less than 2 GiB
_OF_PYTHON = {'PyFunc', 'PyFuncStateless', 'EagerPyFunc'}
# A tensor of fewer elements becomes a constant of the function, and then, when
# the function is optimized, so does the dataset: it could not be sent either.
_NUM_PARTS = 129
_IGNORE_STATE = 1  # such as that of random numbers


class _Own(threading.local):
  # By the ids of datasets' tensors, these and parts of graphs; None if not
  # within `sent`.
  graphs: dict[int, tuple[Any, tf.Tensor]] | None = None


_own = _Own()


@contextlib.contextmanager
def sent() -> Iterator[None]:
  """Makes functions that this thread traces use datasets by their graphs.

  All that are traced within the context share them; it may be nested.
  """
  if _own.graphs is not None:
    yield
    return
  _own.graphs = {}
  try:
    yield
  finally:
    _own.graphs = None


def usable(variant: Any) -> Any:
  """Returns the tensor of a dataset as the function being traced can use it.

  Args:
    variant: the dataset's tensor.

  Raises:
    ValueError: within `sent`, the dataset has no graph that can be sent.
  """
  graphs = _own.graphs
  if graphs is None or not isinstance(variant, tf.__internal__.EagerTensor):
    return variant
  if id(variant) not in graphs:
    graphs[id(variant)] = variant, _parts(variant)
  _, parts = graphs[id(variant)]
  return tf.raw_ops.DatasetFromGraph(graph_def=tf.strings.reduce_join(parts))


def _parts(variant: Any) -> tf.Tensor:
  with tf.init_scope():
    graph = _graph(variant)
    size = -(-len(graph) // _NUM_PARTS)
    return tf.constant(
      [graph[i * size : (i + 1) * size] for i in range(_NUM_PARTS)]
    )


def _graph(variant: Any) -> bytes:
  try:
    graph: bytes = tf.raw_ops.DatasetToGraphV2(
      input_dataset=variant,
      external_state_policy=_IGNORE_STATE,
      strip_device_assignment=True,
    ).numpy()
  except tf.errors.OpError as error:
    raise ValueError(
      _advice(f'which has no graph ({errors.first_line(error)})')
    ) from error
  if not graph:  # TensorFlow could not write it, and raises no error
    raise ValueError(_advice('which has 2 GiB of values or more'))
  if len(graph) > _MAX_BYTES:
    raise ValueError(_advice(f'which has {len(graph) / 1e6:,.0f} MB of values'))
  definition = tf.compat.v1.GraphDef.FromString(graph)
  nodes = [*definition.node]
  for function in definition.library.function:
    nodes.extend(function.node_def)
  python = [node for node in nodes if node.op in _OF_PYTHON]
  if not all(map(host_functions.is_call, python)):
    raise ValueError(_advice('which executes Python code of this process'))
  return graph


def _advice(what: str) -> str:
  return (
    f'dataset_fn: uses a dataset that was made outside of it, {what}. Workers '
    'cannot get it: make it within the function.'
  )
