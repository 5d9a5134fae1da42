"""Variables on the ps that several processes share by name.

A server's memory is common to all its clients, so a name is all it takes: the
chief creates a variable and gives it its value, every other process attaches to
it, and what one adds the others read. The memory belongs to the ps, which keeps
it whoever comes and goes.
"""

import collections
from collections.abc import Callable
import time
from typing import Any

import tensorflow as tf

from tfps import _deadline
from tfps import errors
from tfps import variable_types
from tfps._compat import shared_variables as compat

_POLL_SECS = 0.05


class SharedVariable(compat.NamedVariable):
  """A `tf.Variable` under a name on a ps.

  Attributes:
    attached: whether it was there already when this process made it.
  """

  attached: bool = False


class SharedVariables:
  """Creates the variables of one program, or attaches to them.

  A variable's name is that of its `tf.name_scope` and its own, with a number
  where that has been taken; so programs that make the same variables in the
  same order share them.

  Args:
    is_chief: whether this process gives variables their values; others wait
      for it.
    timeout_secs: how long to wait for the chief.
    chief: who the chief is, for the errors.
  """

  def __init__(
    self, *, is_chief: bool, timeout_secs: float, chief: str
  ) -> None:
    self._is_chief = is_chief
    self._timeout_secs = timeout_secs
    self._chief = chief
    self._taken: collections.Counter[str] = collections.Counter()

  def make(self, **kwargs: Any) -> SharedVariable:
    """A variable on the current device; see `make_within`."""
    return self.make_within(self._timeout_secs, **kwargs)

  def make_within(
    self, timeout_secs: float | None, **kwargs: Any
  ) -> SharedVariable:
    """A variable on the current device.

    Args:
      timeout_secs: how long to wait for the chief; None is for ever.
      **kwargs: those of a variable creator; see `tf.variable_creator_scope`.

    Raises:
      errors.DeadlineError: the chief has not given it a value in time.
      ValueError: its type cannot be told beforehand, or what has its name is
        of another type.
    """
    name = self._name(kwargs.get('name') or 'Variable')
    with tf.init_scope():
      kwargs = _with_type(name, kwargs)
      variable = _variable(name, kwargs)
      variable.attached = variable.is_initialized().numpy()
      if variable.attached:
        _check_type(variable)
      elif self._is_chief:
        variable.assign(_value(kwargs['initial_value']))
      else:
        self._wait_for(variable, timeout_secs)
    return variable

  def _name(self, name: str) -> str:
    scope = tf.get_current_name_scope()
    name = f'{scope}/{name}' if scope else name
    self._taken[name] += 1
    count = self._taken[name]
    return name if count == 1 else f'{name}_{count - 1}'

  def _wait_for(
    self, variable: SharedVariable, timeout_secs: float | None
  ) -> None:
    deadline = _deadline.after(timeout_secs)
    while not variable.is_initialized():
      if _deadline.is_over(deadline):
        raise errors.DeadlineError(
          f'After {timeout_secs:g} seconds, {self._chief} has not created '
          f'the variable {variable.name!r} on {variable.device}. Is it alive, '
          'and does it make the same variables in the same order?'
        )
      time.sleep(_POLL_SECS)
    variable.attached = True
    _check_type(variable)


def _with_type(name: str, kwargs: dict[str, Any]) -> dict[str, Any]:
  kwargs = variable_types.with_type(kwargs)
  if kwargs.get('shape') is None or kwargs.get('dtype') is None:
    raise ValueError(
      f'{name}: shape {kwargs.get("shape")} and dtype {kwargs.get("dtype")} '
      'must be known before a shared variable is made. Give both.'
    )
  return kwargs


def _variable(name: str, kwargs: dict[str, Any]) -> SharedVariable:
  shape = tf.TensorShape(kwargs['shape'])
  dtype = tf.as_dtype(kwargs['dtype'])
  return SharedVariable(
    handle=compat.handle(name, shape=shape, dtype=dtype),
    name=name,
    shape=shape,
    dtype=dtype,
    trainable=kwargs.get('trainable'),
    constraint=kwargs.get('constraint'),
    synchronization=kwargs.get('synchronization'),
    aggregation=kwargs.get('aggregation'),
    distribute_strategy=kwargs.get('distribute_strategy'),
  )


def _value(initial_value: Any | Callable[[], Any]) -> Any:
  return initial_value() if callable(initial_value) else initial_value


def _check_type(variable: SharedVariable) -> None:
  """Compares with what is on the ps, without moving it here."""
  try:
    with tf.device(variable.device):
      found = tf.raw_ops.ReadVariableOp(
        resource=variable.handle, dtype=variable.dtype
      ).shape
  except tf.errors.InvalidArgumentError as error:
    raise ValueError(
      f'{variable.name!r} on {variable.device} is not of dtype '
      f'{variable.dtype.name}: {error.message} Start all tasks with the same '
      'program, or the ps afresh.'
    ) from error
  if not variable.shape.is_compatible_with(found):
    raise ValueError(
      f'{variable.name!r} on {variable.device} has the shape {found}, and this '
      f'program wants {variable.shape}. Start all tasks with the same program, '
      'or the ps afresh.'
    )
