"""Which split a dataset is to be of, while its function is being traced."""

from collections.abc import Iterator
import contextlib
import dataclasses
import threading
from typing import Any

import tensorflow as tf

from tfps import errors

_own = threading.local()


class NeedsOrderError(errors.Error):
  """A dataset of a queue is made where nobody says which split it is of."""


@dataclasses.dataclass
class Order:
  """What to read.

  Attributes:
    split: its number, a scalar int64.
    epoch: how often it has been read before, likewise.
    queue: whose it is, once that is known.
  """

  split: tf.Tensor
  epoch: tf.Tensor
  queue: Any = None


@contextlib.contextmanager
def given(order: Order) -> Iterator[None]:
  """In which a function makes the dataset of a split."""
  _own.order = order
  try:
    yield
  finally:
    _own.order = None


def take(queue: Any) -> Order:
  """The order for a queue, whose dataset is being made.

  Raises:
    NeedsOrderError: there is none.
    ValueError: another queue has taken it.
  """
  order: Order | None = getattr(_own, 'order', None)
  if order is None:
    raise NeedsOrderError(
      'SplitQueue.dataset: nobody shares out splits here. It is for the '
      'dataset_fn of Coordinator.train, of BetweenGraphStrategy.train and of '
      "Keras' fit. Elsewhere, take fixed shares: see tfps.input.shard."
    )
  if order.queue not in (None, queue):
    raise ValueError(
      'dataset_fn: takes from two queues. Put all files into one SplitQueue, '
      'or train on one after the other.'
    )
  order.queue = queue
  return order
