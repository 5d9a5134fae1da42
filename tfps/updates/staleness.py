"""Staleness of gradients when they are applied.

A gradient's staleness is the number of updates between the read of the
parameters with which it was computed and its own update (Zhang et al., 2016,
"Staleness-aware async-SGD for distributed deep learning"). Each ps counts its
updates. The count, a tag, is sent to the worker with the parameters and returns
with the gradients.
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfps._compat import reads
from tfps._compat import replicated_writes
from tfps.variables import placement_ledger
from tfps.wire import pull
from tfps.wire import step_transfers as step_transfers_lib

NUM_BINS = 64


class Staleness:
  """Counters of updates, and histograms of staleness, on the ps.

  Args:
    make: makes a variable of a ps index, a name and a value.
    num_ps: number of ps.
    divides_rate: whether learning rates are divided by the staleness.
  """

  def __init__(
    self,
    make: Callable[..., Any],
    num_ps: int,
    *,
    divides_rate: bool,
  ) -> None:
    self.divides_rate = divides_rate
    zero, zeros = tf.constant(0, tf.int64), tf.zeros([NUM_BINS], tf.int64)
    self._counts = [
      make(ps, f'tfps/staleness/{ps}/count', zero) for ps in range(num_ps)
    ]
    self._bins = [
      make(ps, f'tfps/staleness/{ps}/bins', zeros) for ps in range(num_ps)
    ]

  def tag(self, device: str) -> tf.Tensor | None:
    """Returns a device's count when the step's parameters were read.

    Args:
      device: device of a variable.

    Returns:
      An int64 scalar; None outside of steps, or on a device that is no ps.
    """
    steps = reads.reader()
    ps = placement_ledger.ps_index(device)
    if ps is None or not isinstance(steps, step_transfers_lib.Steps):
      return None
    return steps.read_tag(self._counts[ps])

  def note(
    self,
    device: str,
    tag: tf.Tensor,
    gradients: Sequence[Any],
    *,
    counts: bool,
  ) -> tf.Tensor:
    """Counts an update on a ps and returns the staleness of its gradients.

    Args:
      device: device of the ps, on which the tag has arrived.
      tag: result of `tag`.
      gradients: gradients for whose arrival to wait, as the tag may be earlier.
      counts: whether to add the staleness to the ps' histogram.
    """
    ps = placement_ledger.ps_index(device)
    assert ps is not None
    arrived = tf.nest.flatten(list(gradients), expand_composites=True)
    with (
      tf.device(device),
      replicated_writes.suspended(),
      tf.control_dependencies([tag, *arrived]),
    ):
      now = tf.raw_ops.ReadVariableOp(
        resource=self._counts[ps].handle, dtype=tf.int64
      )
      found = pull.since_tag(now, tag)
      if counts:
        place = tf.minimum(found, NUM_BINS - 1)
        # Unlike `ResourceScatterAdd`, it takes an exclusive lock.
        tf.raw_ops.ResourceScatterNdAdd(
          ref=self._bins[ps].handle,
          indices=tf.reshape(place, [1, 1]),
          updates=tf.constant([1], tf.int64),
        )
      one = tf.constant(1, tf.int64)
      tf.raw_ops.AssignAddVariableOp(
        resource=self._counts[ps].handle, value=one
      )
    return found

  def histogram(self) -> tuple[int, ...]:
    """Returns the number of updates by staleness; the last bin has all above.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    total: Sequence[int] = np.sum([b.numpy() for b in self._bins], 0).tolist()
    return tuple(total)


def is_known() -> bool:
  """Returns whether steps are being traced, whose reads are tagged."""
  return isinstance(reads.reader(), step_transfers_lib.Steps)


def of(strategy: Any) -> Staleness | None:
  """Returns a strategy's staleness counters, or None."""
  found: Staleness | None = getattr(strategy, 'staleness', None)
  return found
