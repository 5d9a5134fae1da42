"""Adds up the gradients of the replicas of a step.

Replicas of one worker are added up there, and the sum is pushed. Where replicas
are on several workers, those of one host are added up on its first worker if
the ps is on another host, and each ps adds up what arrives.
"""

import collections
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps.cluster import spec as spec_lib
from tfps.updates import apply
from tfps.updates.sync import aggregation
from tfps.variables import placement_ledger
from tfps.variables import step_replicas
from tfps.wire import chunking
from tfps.wire import packing
from tfps.wire import push

# Host of each task; a task without one shares its host with no other.
Hosts = Mapping[spec_lib.Task, str]


def on_worker(group: step_replicas.Group, gradients: Sequence[Any]) -> Any:
  """Returns the weighted sum of the replicas' gradients of a variable.

  Args:
    group: replicas.
    gradients: gradient of each replica.
  """
  return _sum(gradients, group.weights())


def on_ps(
  group: step_replicas.Group,
  pieces: Sequence[Sequence[aggregation.Piece]],
  hosts: Hosts,
) -> list[Any]:
  """Returns weighted sums of gradients, each on the ps of its variable.

  Args:
    group: replicas.
    pieces: gradients of each replica, of the same variables and shards.
    hosts: host of each task.

  Returns:
    One sum for each variable or shard.
  """
  by_device: dict[str, list[int]] = collections.defaultdict(list)
  gradients: Sequence[Any]
  for i, piece in enumerate(pieces[0]):
    by_device[piece.variable.device].append(i)
  found: dict[int, Any] = {}
  for device, indices in by_device.items():
    own = [[piece[i] for i in indices] for piece in pieces]
    arrived, weights = [], []
    for members in _pushing_groups(group.devices, device, hosts):
      with tf.device(group.devices[members[0]]):
        gradients, weight = _sum_members(group, own, members)
        arrived.append(_push(gradients, own[0], device))
      weights.append(weight)
    with tf.device(device):
      for i, gradients in zip(indices, zip(*arrived, strict=True), strict=True):
        found[i] = _sum(gradients, weights)
  return [found[i] for i in range(len(found))]


def _pushing_groups(
  devices: Sequence[str], ps_device: str, hosts: Hosts
) -> list[list[int]]:
  """Returns groups of replicas that push one sum to a ps."""
  ps = _task_of(ps_device)
  found: dict[Any, list[int]] = collections.defaultdict(list)
  for i, device in enumerate(devices):
    worker = _task_of(device)
    host = hosts.get(worker)
    is_far = host is not None and host != hosts.get(ps)
    found[host if is_far else worker].append(i)
  return list(found.values())


def _sum_members(
  group: step_replicas.Group,
  pieces: Sequence[Sequence[aggregation.Piece]],
  members: Sequence[int],
) -> tuple[list[Any], Any]:
  """Returns the sums of some replicas' gradients, here, and their weight."""
  weights = group.weights()
  gradients = []
  for i in members:
    with tf.device(group.devices[i]):
      gradients.append([_distinct(piece) for piece in pieces[i]])
  if len(members) == 1:
    return gradients[0], weights[members[0]]
  first = group.devices[members[0]]
  handed = [
    _copy_to(own, group.devices[i], first)
    for i, own in zip(members, gradients, strict=True)
  ]
  own_weights = [weights[i] for i in members]
  sums = [_sum(each, own_weights) for each in zip(*handed, strict=True)]
  return sums, 1.0


def _copy_to(gradients: list[Any], source: str, destination: str) -> list[Any]:
  """Copies gradients to another worker, packed into few tensors."""
  if _task_of(source) == _task_of(destination):
    return gradients
  handed: list[Any] = []
  for chunk in chunking.divide(gradients, lambda gradient: gradient):
    flat = tf.nest.flatten(chunk, expand_composites=True)
    with tf.device(source):
      frame = packing.Packing(flat)
      packed = frame.pack(flat)
    with tf.device(destination):
      parts = frame.unpack(tf.identity(packed))
      handed += tf.nest.pack_sequence_as(chunk, parts, expand_composites=True)
  return handed


def _distinct(piece: aggregation.Piece) -> Any:
  return apply.with_distinct_rows(tf.cast(piece.gradient, piece.variable.dtype))


def _task_of(device: str) -> spec_lib.Task:
  spec: Any = tf.DeviceSpec.from_string(device)
  return spec_lib.Task(spec.job or '', spec.task or 0)


def _push(
  gradients: Sequence[Any], pieces: Sequence[aggregation.Piece], device: str
) -> list[Any]:
  gradients = [
    apply.with_distinct_rows(tf.cast(gradient, piece.variable.dtype))
    for gradient, piece in zip(gradients, pieces, strict=True)
  ]
  if placement_ledger.ps_index(device) is None:
    return gradients
  arrived: list[Any] = []
  for chunk in chunking.divide(gradients, lambda gradient: gradient):
    arrived += push.send(chunk, device, {})
  return arrived


def _sum(gradients: Sequence[Any], weights: Sequence[Any]) -> Any:
  first, number = gradients[0], len(gradients)
  if all(isinstance(w, float) and w == weights[0] for w in weights):
    return _times(weights[0], _total(first, gradients))
  terms = [_times(weights[i], gradients[i]) for i in range(number)]
  return _total(first, terms)


def _total(first: Any, terms: Sequence[Any]) -> Any:
  if len(terms) == 1:
    return terms[0]
  if not all(isinstance(term, tf.IndexedSlices) for term in terms):
    return tf.add_n([tf.convert_to_tensor(term) for term in terms])
  slices = apply.with_distinct_rows(
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
