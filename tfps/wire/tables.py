"""Variables of which steps look rows up, and what they read of them besides.

A step gets a variable's value as a promise. Gathers from it become reads of
rows, so that the promise of the whole may turn out not to be needed: then the
table is not transferred. If it is needed after all, a warning says so.
"""

import collections
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

from absl import logging
import tensorflow as tf

from tfps._compat import gathers
from tfps._compat import graphs
from tfps.wire import chunking
from tfps.wire import fused_transfer

# Warnings are for tables that take longer than the rest of most steps: 4 MiB at
# 1 Gbit/s are 34 ms.
_MANY_BYTES = 1 << 22

_SHARD = '/part_'


class Tables:
  """The variables that a function looks up.

  Args:
    transfers: the fused transfers of the function.
    warned: names of variables that a warning was given for; extended in place.
  """

  def __init__(
    self, transfers: fused_transfer.FusedTransfers, warned: set[str]
  ) -> None:
    self._transfers = transfers
    self._warned = warned
    self._looked_up: set[Any] = set()
    self._values: dict[Any, list[tuple[Any, tf.Tensor]]] = {}
    self._on_ps: list[tuple[Any, tf.Tensor]] = []

  def note_value(self, key: Any, variable: Any, value: tf.Tensor) -> None:
    """Notes the promise of a variable's value.

    Args:
      key: the variable's, which its wrappers share.
      variable: an unsharded variable, or one shard.
      value: the promise.
    """
    self._values.setdefault(key, []).append((variable, value))
    if key in self._looked_up:
      self._set_aside(value)

  def note_lookup(self, key: Any) -> None:
    """Notes that rows of a variable are read."""
    if key in self._looked_up:
      return
    self._looked_up.add(key)
    for _, value in self._values.get(key, ()):
      self._set_aside(value)

  def is_large(self, value: Any) -> bool:
    """Returns whether calls cost less than to send a variable or tensor."""
    size = value.dtype.size * (value.shape.num_elements() or 0)
    return bool(size > gathers.FEW_BYTES)

  def is_read_whole(self, key: Any) -> bool:
    """Returns whether the current round uses the variable's whole value."""
    return any(graphs.is_used(value) for _, value in self._values.get(key, ()))

  def is_only_looked_up(self, key: Any) -> bool:
    """Returns whether the current round reads nothing but rows of it."""
    return key in self._looked_up and not self.is_read_whole(key)

  def note_on_ps(self, variable: Any, gradient: tf.Tensor) -> None:
    """Notes a dense gradient that a ps has, and that is to stay there."""
    self._on_ps.append((variable, gradient))

  def settle(self) -> None:
    """Transfers the tables that are needed as a whole, and warns of them."""
    whole = list(self._sent_whole())
    gradients = [
      (variable, gradient)
      for variable, gradient in self._on_ps
      if graphs.is_used(gradient, beyond=variable.device)
    ]
    self._transfers.settle_alone()
    self._warn(
      whole,
      '%s: each step has all of this table sent to the worker, %.1f MiB, '
      'although it looks rows up in it. Only rows are sent if all that is read '
      'are lookups, as by tf.gather(table, ids), and what is to be computed is '
      'computed from the rows: read no value outside of a loop for lookups '
      'within, and take tf.nn.sampled_softmax_loss for scores of all rows.',
    )
    self._warn(
      gradients,
      '%s: each step has the dense gradient of this table sent from the ps and '
      'back, %.1f MiB each way. The ps computes it, with the regularizer, but '
      'something on the worker needs it, such as the clipping or the loss '
      'scale of an optimizer. Do without these, or without the regularizer.',
    )

  def _warn(self, found: Sequence[tuple[Any, tf.Tensor]], message: str) -> None:
    sizes: dict[str, int] = collections.defaultdict(int)
    for variable, value in found:
      name = variable.name.split(_SHARD)[0]
      sizes[name] += chunking.num_bytes(value) or 0
    for name, num_bytes in sizes.items():
      if num_bytes >= _MANY_BYTES and name not in self._warned:
        self._warned.add(name)
        logging.warning(message, name, num_bytes / 2**20)

  def _sent_whole(self) -> Iterator[tuple[Any, tf.Tensor]]:
    """Yields tables that are sent, although they are looked up."""
    for key, values in self._values.items():
      # Those of earlier rounds have been transferred; they are used alike.
      variable, value = values[-1]
      if not graphs.is_used(value):
        continue
      if key in self._looked_up or gathers.is_gathered_from(value):
        yield variable, value

  def _set_aside(self, value: tf.Tensor) -> None:
    if self.is_large(value):
      self._transfers.set_aside(value)
