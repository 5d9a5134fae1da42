"""Sums of gradients over the workers of an AllReduceStrategy."""

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
from typing import Any

import tensorflow as tf

from tfps.updates.allreduce import local_state as local_state_lib
from tfps.updates.allreduce import reduction as reduction_lib
from tfps.updates.allreduce import session as session_lib
from tfps.variables import mirrored


class GradientSums:
  """Adds up gradients, and tells who writes variables that they were.

  Args:
    session: steps of this worker.
    reduction: adds up gradients.
    extended: notes which variables a step has written.
    local_state: the variables of this worker.

  Attributes:
    is_applying: whether gradients are being applied that were summed.
  """

  def __init__(
    self,
    session: session_lib.AllReduceSession,
    reduction: reduction_lib.Reduction,
    extended: mirrored.Extended,
    local_state: local_state_lib.LocalState,
  ) -> None:
    self._session = session
    self._reduction = reduction
    self._extended = extended
    self._local_state = local_state
    self.is_applying = False
    self._has_learned = False  # in the step that is being traced

  def of(self, gradients: Sequence[Any]) -> list[Any]:
    """Returns the sums of gradients over all workers, to be applied.

    Variables that the workers' batches have changed in this step are averaged
    together with them.

    Args:
      gradients: of this worker; None for a variable without one.
    """
    self._has_learned = True
    flat = [gradient for gradient in gradients if gradient is not None]
    found = iter(self._sum(flat, self._extended.take_written()))
    return [None if gradient is None else next(found) for gradient in gradients]

  @contextlib.contextmanager
  def applying(self) -> Iterator[None]:
    """Returns a context in which sums of gradients are applied."""
    self.is_applying = True
    try:
      yield
    finally:
      self.is_applying = False
      self._extended.skip_written()

  @contextlib.contextmanager
  def in_step(self) -> Iterator[None]:
    """Returns a context in which a replica's function is called.

    Unless a step is being traced already, it is one.
    """
    with self._extended.noting_writes():
      if self._session.is_in_step:
        yield
        self._average_rest(is_training=True)
        return
      # In eager mode nobody knows what is written: what adds up is a step.
      self._has_learned = tf.executing_eagerly()
      with self._session.own_step(lambda: self._has_learned):
        yield
        # What adds up nothing may be an evaluation by one worker alone.
        self._average_rest(is_training=self._reduction.num_sums > 0)

  def _average_rest(self, *, is_training: bool) -> None:
    """Averages what a step has changed since it last added up gradients.

    Of a step that has added up nothing, such as one that computes its updates
    without an optimizer, that is all.

    Args:
      is_training: whether the step is known to be one of training, which all
        workers do. Without, it is if it changes a trainable variable.
    """
    written = self._extended.take_written(with_trainable=True)
    if any(variable.trainable for variable in written):
      self._has_learned = is_training = True
    if self._reduction.num_sums:
      written = [variable for variable in written if not variable.trainable]
    if self._extended.num_workers > 1 and is_training and written:
      self._sum([], written)

  def _sum(self, gradients: Sequence[Any], written: Sequence[Any]) -> list[Any]:
    """Returns the sums of gradients, and averages variables with them."""
    self._session.join_before_sum()
    values = [variable.read_value() for variable in written]
    sums = self._reduction.sum_all(gradients, self._factor(), values)
    for variable, mean in zip(written, sums[len(gradients) :], strict=True):
      self._local_state.keep(variable, mean)
    return sums[: len(gradients)]

  def _factor(self) -> Any:
    """Returns by what to multiply gradients, so that their sum is right."""
    if self._extended.num_workers == 1:
      return None
    factor, weight = self._reduction.scale.read_value(), self._extended.weight
    return factor if weight is None else factor * weight
