"""Operations of a graph that is being built: who uses what, and rewiring."""

from collections.abc import Callable
from collections.abc import Container
from collections.abc import Hashable
from collections.abc import Iterator
from typing import Any
from typing import TypeVar

import tensorflow as tf
from tensorflow.python.framework import ops

_Made = TypeVar('_Made')


def once(key: Hashable, make: Callable[[], _Made]) -> _Made:
  """Returns what a function makes for a key, once in each graph.

  It is made without control inputs; in eager mode it is made each time.

  Args:
    key: what it depends on.
    make: makes it.
  """
  if tf.executing_eagerly():
    return make()
  graph = ops.get_default_graph()
  # An attribute, and no weak dictionary: its values keep the graph.
  if not hasattr(graph, '_tfps_made'):
    graph._tfps_made = {}
  made: dict[Hashable, _Made] = graph._tfps_made
  if key not in made:
    with tf.control_dependencies(None):
      made[key] = make()
  return made[key]


def rewire(tensor: tf.Tensor, source: tf.Tensor) -> None:
  """Replaces the input of an identity, and makes its consumers bypass it.

  Args:
    tensor: the identity's output.
    source: used instead.
  """
  tensor.op._update_input(0, source)
  for consumer in tensor.consumers():
    for i, taken in enumerate(consumer.inputs):
      if taken is tensor:
        consumer._update_input(i, source)


# What does nothing but pass a value on: without a consumer it is not executed.
_PASSING = ('Identity', 'Cast', 'ConcatV2')


def is_used(tensor: tf.Tensor, *, beyond: str | None = None) -> bool:
  """Returns whether something consumes a tensor, other than to pass it on.

  Args:
    tensor: the tensor.
    beyond: a device whose consumers do not count.
  """
  return any(
    consumer.type not in _PASSING
    or any(is_used(output, beyond=beyond) for output in consumer.outputs)
    for consumer in tensor.consumers()
    if consumer.device != beyond
  )


def terms(gradient: tf.Tensor) -> list[Any]:
  """Returns what a tape has added up to a gradient.

  TensorFlow adds up by `AddN`, with rows made dense by `UnsortedSegmentSum`.

  Returns:
    Tensors and `tf.IndexedSlices`; the gradient itself if it is no sum.
  """
  if gradient.op.type != 'AddN':
    return [gradient]
  return [
    tf.IndexedSlices(*term.op.inputs[:2])
    if term.op.type == 'UnsortedSegmentSum' and term.shape == gradient.shape
    else term
    for term in gradient.op.inputs
  ]


def sources(tensor: tf.Tensor, ends: Container[str]) -> Iterator[tf.Operation]:
  """Yields all operations that a tensor's value depends on.

  Args:
    tensor: of the graph that is being built.
    ends: names of operations beyond which the search does not go.
  """
  seen: set[Any] = set()
  waiting = [tensor.op]
  while waiting:
    operation = waiting.pop()
    if operation.name in seen:
      continue
    seen.add(operation.name)
    yield operation
    if operation.name in ends:
      continue
    waiting.extend(t.op for t in operation.inputs)
    waiting.extend(operation.control_inputs)
