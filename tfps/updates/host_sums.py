"""Has the workers of a host add up their gradients, and one of them push them.

Each is a process that executes its own function, which calls Python here: what
is added up is in memory that they share, and not in tensors.
"""

from collections.abc import Sequence
import functools
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfps.cluster import spec as spec_lib
from tfps.hosts import groups
from tfps.hosts import messages
from tfps.updates import policies
from tfps.updates.sync import aggregation as aggregation_lib
from tfps.updates.sync import protocol_ops as protocol_ops_lib

_ANY_VERSION = 1 << 62


class Place(NamedTuple):
  """Where a worker is in a step.

  Attributes:
    step: the version of the first point at which it began.
    point: that at which it is.
    turn: of that point.
  """

  step: tf.Tensor
  point: int
  turn: protocol_ops_lib.StepTicket


class HostSums:
  """For the functions that a worker has traced.

  Args:
    group: the workers of the host.
    task: this one.
  """

  def __init__(self, group: groups.Group, task: spec_lib.Task) -> None:
    self._group = group
    self._device = f'/job:{task.job}/task:{task.index}/device:CPU:0'

  def begin(self) -> None:
    """Looks for the others of this host, before the first step."""
    self._group.begin()

  def leave(self) -> None:
    """Has nobody of this host wait for this worker until its next step."""
    self._group.leave()

  def add(
    self,
    sums: aggregation_lib.GradientAggregator,
    pieces: Sequence[aggregation_lib.Piece],
    place: Place,
  ) -> tuple[list[tf.Tensor], protocol_ops_lib.StepTicket]:
    """Has gradients added on the ps, by this worker or by another one.

    Returns:
      Tensors after which they are there, and the turn; with a version that is
      late if the ps have not taken them.
    """
    gradients = [aggregation_lib.in_type_of(piece) for piece in pieces]
    shared, workers = self._share(gradients, place)

    def push() -> tf.Tensor:
      own = [
        aggregation_lib.Piece(piece.variable, gradient)
        for piece, gradient in zip(
          pieces, _pack(gradients, shared), strict=True
        )
      ]
      return tf.stack(sums.add(own, place.turn, workers))

    number = tf.size(workers)
    counts = tf.cond(
      number > 0, push, lambda: tf.zeros([sums.num_ps], tf.int64)
    )
    # The ps have some of it, which somebody has pushed alone who has waited for
    # too long. So do the others then, and this worker is late.
    is_refused = tf.reduce_any(tf.equal(counts, aggregation_lib.REFUSED)) & (
      number > 1
    )
    with tf.device(self._device):
      told = tf.numpy_function(self._tell, [is_refused], tf.int64)
    never = tf.constant(protocol_ops_lib.NEVER, tf.int64)
    version = tf.where(is_refused, never, place.turn.version)
    return [told], place.turn._replace(version=version)

  def _share(
    self, gradients: Sequence[Any], place: Place
  ) -> tuple[list[tf.Tensor], tf.Tensor]:
    flat = tf.nest.flatten(list(gradients), expand_composites=True)
    call = functools.partial(self._call, place.point, _are_rows(gradients))
    with tf.device(self._device):
      *shared, workers = tf.numpy_function(
        call,
        [place.step, place.turn.version, *flat],
        [*(tensor.dtype for tensor in flat), tf.int64],
      )
    return shared, tf.ensure_shape(workers, [None])

  def _call(
    self,
    point: int,
    are_rows: Sequence[bool],
    step: np.int64,
    version: np.int64,
    *arrays: np.ndarray,
  ) -> list[np.ndarray]:
    if version == protocol_ops_lib.NEVER:
      self._group.pass_over(messages.Turn(int(step), point, _ANY_VERSION))
      return [*arrays, np.array([self._group.worker], np.int64)]
    turn = messages.Turn(int(step), point, int(version))
    shared, workers = self._group.share(turn, arrays, are_rows)
    return [*shared, np.array(workers, np.int64)]

  def _tell(self, is_refused: np.bool_) -> np.int64:
    self._group.tell(is_pushed=not is_refused)
    return np.int64(0)


def of(
  policy: policies.Waiting,
  cluster: spec_lib.Cluster,
  task: spec_lib.Task,
  tasks: Sequence[spec_lib.Task],
) -> HostSums | None:
  """For a task, among all that train; None if each pushes for itself."""
  if not isinstance(policy, policies.Sync) or not policy.by_host:
    return None
  group = groups.of(cluster, task, tasks, timeout_secs=policy.timeout_secs)
  return HostSums(group, task)


def _are_rows(gradients: Sequence[Any]) -> list[bool]:
  return [
    isinstance(gradient, tf.IndexedSlices)
    for gradient in gradients
    for _ in tf.nest.flatten(gradient, expand_composites=True)
  ]


def _pack(gradients: Sequence[Any], shared: Sequence[tf.Tensor]) -> list[Any]:
  """What Python has returned, with shapes as far as they are known."""
  left = iter(shared)
  packed = []
  for gradient in gradients:
    if isinstance(gradient, tf.IndexedSlices):
      values = tf.ensure_shape(next(left), [None, *gradient.values.shape[1:]])
      indices = tf.ensure_shape(next(left), [None])
      packed.append(tf.IndexedSlices(values, indices))
    else:
      packed.append(tf.ensure_shape(next(left), gradient.shape))
  return packed
