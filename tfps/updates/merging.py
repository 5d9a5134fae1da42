"""Makes one gradient of those that the replicas of a step have.

Replicas of one worker add theirs up there, and push the sum. Where replicas are
on several workers, each pushes its own, and each ps adds up what comes to it.
"""

import collections
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps import _ledger
from tfps import _replicas
from tfps.updates import applying
from tfps.updates import sums
from tfps.wire import chunking
from tfps.wire import sending


def on_worker(group: _replicas.Group, gradients: Sequence[Any]) -> Any:
  """The sum of the replicas' gradients of a variable, by their weights.

  Args:
    group: the replicas.
    gradients: of each.
  """
  return _sum(gradients, group.weights())


def on_ps(
  group: _replicas.Group, pieces: Sequence[Sequence[sums.Piece]]
) -> list[Any]:
  """The sums of gradients, each on the ps that has its variable.

  Args:
    group: the replicas.
    pieces: of each replica, its gradients of the same variables and shards.

  Returns:
    One sum for each variable or shard.
  """
  weights = group.weights()
  by_device: dict[str, list[int]] = collections.defaultdict(list)
  for i, piece in enumerate(pieces[0]):
    by_device[piece.variable.device].append(i)
  found: dict[int, Any] = {}
  for device, indices in by_device.items():
    arrived = []
    for own_device, own in zip(group.devices, pieces, strict=True):
      with tf.device(own_device):
        arrived.append(_push([own[i] for i in indices], device))
    with tf.device(device):
      for i, gradients in zip(indices, zip(*arrived, strict=True), strict=True):
        found[i] = _sum(gradients, weights)
  return [found[i] for i in range(len(found))]


def _push(pieces: Sequence[sums.Piece], device: str) -> list[Any]:
  gradients = [
    applying.with_distinct_rows(tf.cast(piece.gradient, piece.variable.dtype))
    for piece in pieces
  ]
  if _ledger.ps_index(device) is None:
    return gradients
  arrived: list[Any] = []
  for chunk in chunking.divide(gradients, lambda gradient: gradient):
    arrived += sending.send(chunk, device, {})
  return arrived


def _sum(gradients: Sequence[Any], weights: Sequence[Any]) -> Any:
  first, number = gradients[0], len(gradients)
  if all(isinstance(weight, float) for weight in weights):  # all the same
    return _times(weights[0], _total(first, gradients))
  terms = [_times(weights[i], gradients[i]) for i in range(number)]
  return _total(first, terms)


def _total(first: Any, terms: Sequence[Any]) -> Any:
  if len(terms) == 1:
    return terms[0]
  if not all(isinstance(term, tf.IndexedSlices) for term in terms):
    return tf.add_n([tf.convert_to_tensor(term) for term in terms])
  slices = applying.with_distinct_rows(
    tf.IndexedSlices(
      tf.concat([term.values for term in terms], axis=0),
      tf.concat([tf.cast(t.indices, tf.int64) for t in terms], axis=0),
    )
  )
  return tf.IndexedSlices(slices.values, slices.indices, first.dense_shape)


def _times(weight: Any, gradient: Any) -> Any:
  if isinstance(weight, float) and weight == 1.0:
    return gradient
  values = getattr(gradient, 'values', gradient)
  if isinstance(weight, float):
    weight = tf.constant(weight, values.dtype)
  values *= tf.cast(weight, values.dtype)
  if not isinstance(gradient, tf.IndexedSlices):
    return values
  return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
