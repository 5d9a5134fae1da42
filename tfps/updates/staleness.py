"""How old gradients are when they are applied.

A gradient's staleness is the number of updates that came between the read of
the parameters it was computed by and its own update (Zhang et al., 2016,
"Staleness-aware async-SGD for distributed deep learning"). Each ps counts the
updates that it gets. The count travels to the worker with the parameters, and
back with the gradients.
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
  """What the ps know of it.

  Args:
    make: makes a variable; gets a ps, a name and a value.
    num_ps: how many ps there are.
    divides_rate: whether learning rates are divided by it.
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
    """What the count of a device was when the step's parameters were read.

    None where nobody knows: on no ps, or outside of steps.
    """
    steps = reads.reader()
    ps = placement_ledger.ps_index(device)
    if ps is None or not isinstance(steps, step_transfers_lib.Steps):
      return None
    return steps.read_tag(self._counts[ps]) if steps.wire.fuse else None

  def note(self, device: str, tag: tf.Tensor, *, counts: bool) -> tf.Tensor:
    """The staleness of gradients that have come to a device.

    Args:
      device: of the ps, on which the tag has arrived.
      tag: as it was given.
      counts: whether to count it in the ps' histogram.
    """
    ps = placement_ledger.ps_index(device)
    assert ps is not None
    with (
      tf.device(device),
      replicated_writes.suspended(),
      tf.control_dependencies([tag]),
    ):
      now = tf.raw_ops.ReadVariableOp(
        resource=self._counts[ps].handle, dtype=tf.int64
      )
      found = pull.since_tag(now, tag)
      if counts:
        place = tf.minimum(found, NUM_BINS - 1)
        # Unlike `ResourceScatterAdd` it keeps others out.
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
    """How many updates were of each staleness; the last bin has all above.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    total: Sequence[int] = np.sum([b.numpy() for b in self._bins], 0).tolist()
    return tuple(total)


def of(strategy: Any) -> Staleness | None:
  """A strategy's, if it has one."""
  found: Staleness | None = getattr(strategy, 'staleness', None)
  return found
