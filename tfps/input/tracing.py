"""Split that a `dataset_fn` reads, passed to its queue during tracing."""

from collections.abc import Iterator
import contextlib
import dataclasses
import threading
from typing import Any

import tensorflow as tf

from tfps import errors

_own = threading.local()


class NeedsOrderError(errors.Error):
  """Raised by a queue's `dataset` outside the tracing of a `dataset_fn`."""


@dataclasses.dataclass
class Order:
  """Split to read.

  Attributes:
    split: its index, a scalar int64.
    epoch: its epoch, a scalar int64.
    queue: its queue, once `take` was called.
  """

  split: tf.Tensor
  epoch: tf.Tensor
  queue: Any = None


@contextlib.contextmanager
def given(order: Order) -> Iterator[None]:
  """Makes an order current on this thread, for a `dataset_fn` to take."""
  _own.order = order
  try:
    yield
  finally:
    _own.order = None


def take(queue: Any) -> Order:
  """Returns the current order, for a queue whose dataset is being made.

  Args:
    queue: the queue.

  Raises:
    NeedsOrderError: there is none on this thread.
    ValueError: another queue has taken it.
  """
  order: Order | None = getattr(_own, 'order', None)
  if order is None:
    raise NeedsOrderError(
      'SplitQueue.dataset: no split is assigned here. Call it in the '
      'dataset_fn of Coordinator.train, of BetweenGraphStrategy.train or of '
      "Keras' fit. Elsewhere, use fixed shares: see tfps.input.shard."
    )
  if order.queue not in (None, queue):
    raise ValueError(
      'dataset_fn: reads from two queues. Put all files into one SplitQueue, '
      'or train on one after the other.'
    )
  order.queue = queue
  return order
