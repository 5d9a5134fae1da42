"""Moves tensors to another device in few pieces.

Each tensor that another task needs costs a call, some tenths of a millisecond
on both sides, however small it is. So small ones of one type go as one.
"""

import collections
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

# What is larger costs more to join and part than a call does.
_SMALL_BYTES = 1 << 18


def move(structure: Any, device: str) -> Any:
  """The same on a device.

  Args:
    structure: of tensors, from anywhere, and of numbers.
    device: where they are needed.
  """
  flat = tf.nest.flatten(structure, expand_composites=True)
  moved: dict[int, tf.Tensor] = {}
  for tensors in _small_by_type(flat):
    moved.update(zip(map(id, tensors), _together(tensors, device), strict=True))
  with tf.device(device):
    flat = [
      moved[id(value)] if id(value) in moved else tf.identity(value)
      for value in flat
    ]
  return tf.nest.pack_sequence_as(structure, flat, expand_composites=True)


def _small_by_type(values: Sequence[Any]) -> list[list[tf.Tensor]]:
  """Small tensors, each once."""
  by_type: dict[tf.DType, dict[int, tf.Tensor]] = collections.defaultdict(dict)
  for value in values:
    if tf.is_tensor(value) and _is_small(value):
      by_type[value.dtype][id(value)] = value
  return [list(tensors.values()) for tensors in by_type.values()]


def _is_small(tensor: tf.Tensor) -> bool:
  number = tensor.shape.num_elements()
  return number is not None and number * tensor.dtype.size <= _SMALL_BYTES


def _together(tensors: Sequence[tf.Tensor], device: str) -> list[tf.Tensor]:
  if len(tensors) == 1:
    with tf.device(device):
      return [tf.identity(tensors[0])]
  joined = tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], axis=0)
  sizes = [tensor.shape.num_elements() for tensor in tensors]
  with tf.device(device):
    parts = tf.split(tf.identity(joined), sizes)
    return [
      tf.reshape(part, tensor.shape)
      for part, tensor in zip(parts, tensors, strict=True)
    ]
