"""Variables on the ps that several processes share by name.

A server's memory is common to all its clients, so a name is all it takes: the
chief creates a variable and gives it its value, every other process attaches to
it, and what one adds the others read. The memory belongs to the ps, which keeps
it whoever comes and goes.
"""

import collections
from collections.abc import Iterable
import time
from typing import Any

import tensorflow as tf

from tfps import _deadline
from tfps import _directory
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
  where the program has used that before. Programs share what they give the same
  name.

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
    self._directory = _directory.Directory()
    self._taken: collections.Counter[str] = collections.Counter()

  def make(self, **kwargs: Any) -> SharedVariable:
    """A variable on the current device; see `make_within`."""
    return self.make_within(self._timeout_secs, **kwargs)

  def make_within(
    self, timeout_secs: float | None, **kwargs: Any
  ) -> SharedVariable:
    """A variable on the current device, or where it is already.

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
      if self._is_chief:
        found = self._attach(name, kwargs)
        return self._create(name, kwargs) if found is None else found
      return self._wait_for(name, kwargs, timeout_secs)

  def rejoin(self) -> None:
    """To be called once a ps that was lost is back."""
    self._directory = _directory.Directory()

  def announce(self, variables: Iterable[SharedVariable]) -> None:
    """Says where variables are, again."""
    for variable in variables:
      self._directory.add(variable.shared_name, _entry(variable))

  def _name(self, name: str) -> str:
    scope = tf.get_current_name_scope()
    name = f'{scope}/{name}' if scope else name
    self._taken[name] += 1
    count = self._taken[name]
    return name if count == 1 else f'{name}_{count - 1}'

  def _create(self, name: str, kwargs: dict[str, Any]) -> SharedVariable:
    variable = _variable(name, kwargs)
    value = kwargs['initial_value']
    variable.assign(value() if callable(value) else value)
    self._directory.add(name, _entry(variable))
    return variable

  def _attach(self, name: str, kwargs: dict[str, Any]) -> SharedVariable | None:
    """The variable that is there; None if it is not, or has lost its value."""
    entry = self._directory.find(name)
    if entry is None:
      return None
    with tf.device(entry.device):
      variable = _variable(name, kwargs)
    if not variable.is_initialized():  # its ps has restarted
      return None
    _check(name, _entry(variable), entry)
    variable.attached = True
    return variable

  def _wait_for(
    self, name: str, kwargs: dict[str, Any], timeout_secs: float | None
  ) -> SharedVariable:
    deadline = _deadline.after(timeout_secs)
    while (variable := self._attach(name, kwargs)) is None:
      if _deadline.is_over(deadline):
        raise errors.DeadlineError(
          f'After {timeout_secs:g} seconds, {self._chief} has not created the '
          f'variable {name!r}. Is it alive, and does it run the same program?'
        )
      time.sleep(_POLL_SECS)
    return variable


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


def _entry(variable: SharedVariable) -> _directory.Entry:
  shape = tuple(variable.shape.as_list())
  return _directory.Entry(variable.device, variable.dtype.name, shape)


def _check(
  name: str, wanted: _directory.Entry, found: _directory.Entry
) -> None:
  if wanted != found:
    raise ValueError(
      f'The variable {name!r} on {found.device} is {found}, and this program '
      f'wants {wanted}. Start all tasks with the same program, or the ps '
      'afresh.'
    )
