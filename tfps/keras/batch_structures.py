"""Batches as structures of tensors, which are divided, and stacked.

A batch is any structure that Keras trains on, such as (x, y).
"""

from collections.abc import Iterator
import functools
import itertools
from typing import Any

import keras
import tensorflow as tf

from tfps.input import batch_rows
from tfps.variables import step_replicas


def as_tensors(batch: Any) -> Any:
  """Returns a batch with its arrays as tensors; None for absent optionals."""
  return keras.tree.map_structure(_as_tensor, batch)


def _as_tensor(leaf: Any) -> Any:
  """Converts an input: absent optionals to None, arrays to tensors."""
  if isinstance(leaf, tf.experimental.Optional):
    return leaf.get_value() if leaf.has_value() else None
  is_composite = isinstance(leaf, tf.__internal__.CompositeTensor)
  return leaf if leaf is None or is_composite else tf.convert_to_tensor(leaf)


def divide(batch: Any, strategy: tf.distribute.Strategy) -> Any:
  """Divides a batch among the replicas of a step.

  A batch of fewer examples than replicas has a piece for each example.

  Args:
    batch: a structure of tensors with the same first dimension, and scalars.
    strategy: the strategy of the step.

  Returns:
    The batch if a step has one replica; otherwise a tuple of pieces.

  Raises:
    ValueError: tensors of the batch have different first dimensions.
  """
  number = len(step_replicas.of(strategy).devices)
  if number == 1:
    return batch
  size = _size(batch, number, 'replicas')
  number = max(1, min(number, size))
  ends = [size * i // number for i in range(number + 1)]
  # A list would be taken for several batches.
  return tuple(
    keras.tree.map_structure(
      functools.partial(batch_rows.part, first=first, last=last), batch
    )
    for first, last in itertools.pairwise(ends)
  )


def part(batch: Any, rank: int, size: int) -> step_replicas.Weighted:
  """Returns a worker's part of a batch for all workers.

  If there are fewer examples than workers, each has the whole batch, and only
  the first one counts its metrics.

  Args:
    batch: a structure of tensors with the same first dimension, and scalars.
    rank: place of the worker.
    size: number of workers.

  Raises:
    ValueError: tensors of the batch have different first dimensions.
  """
  batch = as_tensors(batch)
  number = _size(batch, size, 'workers')
  if number < size:
    return step_replicas.weighted(batch, 1.0, counts=float(rank == 0))
  first, last = number * rank // size, number * (rank + 1) // size
  own = keras.tree.map_structure(
    functools.partial(batch_rows.part, first=first, last=last), batch
  )
  return step_replicas.weighted(own, (last - first) * size / number)


def _size(batch: Any, number: int, among: str) -> int:
  """Returns the number of examples of a batch; 1 if it has only scalars."""
  leaves = [leaf for leaf in keras.tree.flatten(batch) if leaf is not None]
  rows = {
    int(batch_rows.count(leaf)) for leaf in leaves if leaf.shape.rank != 0
  }
  if len(rows) > 1:
    raise ValueError(
      f'A batch has parts of {sorted(rows)} examples, and cannot be divided '
      f'among {number} {among}. Give all parts the same number.'
    )
  return rows.pop() if rows else 1


def group(batches: list[Any], size: int) -> Iterator[list[Any]]:
  """Yields groups of at most `size` successive batches of equal shapes.

  Args:
    batches: the batches. Those that cannot be stacked are yielded one by one.
    size: the size of a full group.
  """
  for kinds, run in itertools.groupby(batches, _kinds):
    equal = list(run)
    most = size if all(kinds) else 1
    for first in range(0, len(equal), most):
      yield equal[first : first + most]


def stack(batches: list[Any]) -> Any:
  """Stacks batches of equal shapes, so that they are sent as one.

  Returns:
    A structure of tensors with a new first dimension; for a batch that cannot
    be stacked, the list with it.
  """
  if not all(_kinds(batches[0])):
    return batches
  flat = [keras.tree.flatten(batch) for batch in batches]
  stacked = [_stack(leaves) for leaves in zip(*flat, strict=True)]
  return keras.tree.pack_sequence_as(batches[0], stacked)


def spec_of(stacked: Any) -> Any:
  """Returns the type of any number of batches such as `stack` returned."""
  if isinstance(stacked, list):
    return keras.tree.map_structure(_spec_of, stacked)
  return keras.tree.map_structure(_spec_of_any_number, stacked)


def unstack(stacked: Any, first: tf.Tensor | int) -> Iterator[Any]:
  """Yields the batches that `stack` stacked, from an index on, in a graph."""
  if isinstance(stacked, list):
    yield from stacked[first:]
    return
  for i in itertools.count():
    yield keras.tree.map_structure(
      lambda leaf, i=i: None if leaf is None else leaf[first + i], stacked
    )


def _spec_of(leaf: Any) -> Any:
  return None if leaf is None else tf.type_spec_from_value(leaf)


def _spec_of_any_number(leaf: Any) -> Any:
  if leaf is None:
    return None
  return tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype)


def _kinds(batch: Any) -> tuple[Any, ...]:
  return tuple(map(_kind, keras.tree.flatten(batch)))


def _kind(leaf: Any) -> Any:
  """Returns the kind of leaves that can be stacked; None if none can."""
  if leaf is None:
    return 'absent'
  return (leaf.dtype, *leaf.shape) if isinstance(leaf, tf.Tensor) else None


def _stack(leaves: tuple[Any, ...]) -> Any:
  return None if leaves[0] is None else tf.stack(leaves)
