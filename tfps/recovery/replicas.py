"""Has each variable on one more ps, from where a lost one can have it again."""

from collections.abc import Sequence
import time
from typing import Any

import tensorflow as tf

from tfps import _deadline
from tfps import _ledger
from tfps import errors
from tfps._compat import handles
from tfps._compat import twins as compat
from tfps.recovery import config
from tfps.recovery import inventory

_POLL_SECS = 0.05


class Replicas:
  """A twin of each variable, and of each shard, on the ps after its own.

  Updates of several workers may come to a variable in one order and to its twin
  in another, so that the two can differ by what their order makes of them.

  Args:
    recovery: whether there are any, and how long to wait for the chief's.
    num_ps: how many ps there are.

  Raises:
    ValueError: there is only one.
  """

  def __init__(self, recovery: config.Recovery, num_ps: int) -> None:
    self._are_wanted = recovery.replicas > 0
    if self._are_wanted and num_ps < 2:
      raise ValueError(
        f'Recovery: replicas={recovery.replicas} with {num_ps} ps, and a '
        'variable needs another one to be on. Add a ps, or set replicas=0.'
      )
    self._timeout_secs = recovery.timeout_secs
    self._num_ps = num_ps
    self._twins = compat.Twins()

  def add(self, entry: inventory.Entry, *, is_new: bool) -> None:
    """Makes the twins of a variable, which get its value."""
    self._add(entry, lambda twin: is_new or not twin.is_initialized())

  def attach(self, entry: inventory.Entry) -> None:
    """Finds the twins of a variable, which the chief makes.

    Raises:
      errors.DeadlineError: it has not, in time.
    """
    for twin in self._add(entry, lambda twin: False):
      deadline = _deadline.after(self._timeout_secs)
      while not twin.is_initialized():
        if _deadline.is_over(deadline):
          raise errors.DeadlineError(
            f'After {self._timeout_secs:g} seconds, the chief has not made the '
            f'replica of {entry.key}. Is it alive, and does it train with '
            'replicas=1, too?'
          )
        time.sleep(_POLL_SECS)

  def renew(self, variables: Sequence[Any], ps: set[int]) -> None:
    """Gives what was on ps that have restarted memory there, without a value.

    Args:
      variables: that were there, besides the twins.
      ps: their indices.

    Raises:
      tf.errors.OpError: a ps is lost; all are as they were.
    """
    twins = [twin for _, twin in self._twins.pairs() if _ps_of(twin) in ps]
    handles.renew([*variables, *twins])
    self._twins.note_handles()

  def have_all_of(self, ps: set[int]) -> bool:
    """Whether what was on these ps is on others, too."""
    return self._are_wanted and not any(
      (index + 1) % self._num_ps in ps for index in ps
    )

  def put_back(self, ps: set[int]) -> None:
    """Gives variables and twins on ps that have restarted their values.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    for variable, twin in self._twins.pairs():
      if _ps_of(variable) in ps:
        _copy(twin, variable)
      elif _ps_of(twin) in ps:
        _copy(variable, twin)

  def copy(self) -> None:
    """Gives all twins the values of their variables.

    Raises:
      tf.errors.OpError: a ps is lost.
    """
    for variable, twin in self._twins.pairs():
      _copy(variable, twin)

  def _add(self, entry: inventory.Entry, is_empty: Any) -> list[Any]:
    twins = []
    for piece in entry.pieces() if self._are_wanted else ():
      ps = (_ps_of(piece.variable) + 1) % self._num_ps
      twin = compat.make(piece.variable, _ledger.ps_device(ps))
      if is_empty(twin):
        _copy(piece.variable, twin)
      self._twins.add(piece.variable, twin)
      twins.append(twin)
    return twins


def _copy(source: Any, target: Any) -> None:
  with tf.init_scope(), compat.apart():
    target.assign(source.read_value())
    if not target.is_initialized():
      # TensorFlow tells of a remote operation's failure late, or not at all.
      raise tf.errors.UnavailableError(
        None, None, f'ps:{_ps_of(target)} could not take a value.'
      )


def _ps_of(variable: Any) -> int:
  ps = _ledger.ps_index(variable.device)
  assert ps is not None, variable
  return ps
