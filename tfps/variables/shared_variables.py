"""Variables on the ps that several processes share by name.

Clients of a server share its resources by name: the chief creates a variable
and initializes it, and every other process attaches to it. The ps owns the
memory and keeps it when processes end.
"""

import collections
from collections.abc import Callable
from collections.abc import Iterable
import functools
import time
from typing import Any

import tensorflow as tf

from tfps import errors
from tfps._compat import shared_variables as compat
from tfps._utils import deadlines
from tfps._utils import timeouts
from tfps.variables import name_table
from tfps.variables import variable_types


class SharedVariable(compat.NamedVariable):
  """A `tf.Variable` whose memory has a name on a ps.

  Attributes:
    attached: whether the memory existed when this process created the variable.
  """

  attached: bool = False


class SharedVariables:
  """Creates the variables of one program, or attaches to them.

  The name of a variable's memory is its `tf.name_scope` and name, with a number
  appended if the program used that before. Programs share variables that have
  the same name.

  Args:
    is_chief: whether this process initializes variables; others wait for it.
    timeout_secs: seconds to wait for the chief.
    chief: name of the chief, for errors.
    container: resource container of the memory; empty for the default one. In
      another container, consecutive variables of one name may differ in type,
      which is an error otherwise, and variables' own names have no numbers.

  Attributes:
    is_chief: as the argument.
    attaches: whether the chief attaches to existing memory; otherwise it
      creates all variables anew.
    surviving: calls the look-up of a variable, in processes other than the
      chief; may repeat it after failures.
  """

  def __init__(
    self,
    *,
    is_chief: bool,
    timeout_secs: float,
    chief: str,
    container: str = '',
  ) -> None:
    self.is_chief = is_chief
    self._timeout_secs = timeout_secs
    self._chief = chief
    self._container = container
    self.attaches = True
    self.surviving: Callable[[Callable[[], Any]], Any] = lambda find: find()
    self._name_table = name_table.NameTable(container)
    self._taken: collections.Counter[str] = collections.Counter()

  def make(self, **kwargs: Any) -> SharedVariable:
    """Returns a variable on the current device; see `make_within`."""
    return self.make_within(self._timeout_secs, **kwargs)

  def make_within(
    self, timeout_secs: float | None, **kwargs: Any
  ) -> SharedVariable:
    """Returns a variable on the current device, or where it exists already.

    Args:
      timeout_secs: seconds to wait for the chief; None for no limit.
      **kwargs: arguments of a variable creator; see
        `tf.variable_creator_scope`.

    Raises:
      errors.DeadlineError: the chief has not initialized it in time.
      ValueError: shape or dtype are unknown, or the existing variable has other
        ones.
    """
    plain = _name(kwargs.get('name') or 'Variable')
    name = self._numbered(plain)
    with tf.init_scope():
      kwargs = _with_type(name, kwargs)
      memory = compat.Memory(name)
      if self._container:
        kind = f'{kwargs["dtype"].name}{kwargs["shape"]}'
        memory = compat.Memory(f'{name} {kind}', self._container)
      kwargs['name'] = plain if self._container else name
      if self.is_chief:
        try:
          found = self._attach(memory, kwargs) if self.attaches else None
          return self._create(memory, kwargs) if found is None else found
        except tf.errors.OpError:
          self._taken[plain] -= 1  # the next call makes this variable
          raise
      return self._wait_for(memory, kwargs, timeout_secs)

  def rejoin(self) -> None:
    """Reconnects to the name table; call it once a lost ps is back."""
    self._name_table = name_table.NameTable(self._container)

  def announce(self, variables: Iterable[SharedVariable]) -> None:
    """Writes entries of variables to the name table again.

    Args:
      variables: the variables.
    """
    for variable in variables:
      self._name_table.add(variable.memory.name, _entry(variable))

  def _numbered(self, name: str) -> str:
    self._taken[name] += 1
    count = self._taken[name]
    return name if count == 1 else f'{name}_{count - 1}'

  def _create(
    self, memory: compat.Memory, kwargs: dict[str, Any]
  ) -> SharedVariable:
    variable = _variable(memory, kwargs)
    value = kwargs['initial_value']
    value = tf.convert_to_tensor(
      value() if callable(value) else value, variable.dtype
    )
    variable.shape.assert_is_compatible_with(value.shape)
    # What an earlier program has left may have grown to another shape, which
    # `variable.assign` would refuse.
    tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)
    self._name_table.add(variable.memory.name, _entry(variable))
    return variable

  def _attach(
    self, memory: compat.Memory, kwargs: dict[str, Any]
  ) -> SharedVariable | None:
    """Returns the existing variable; None if there is none with a value."""
    entry = self._name_table.find(memory.name)
    if entry is None:
      return None
    with tf.device(entry.device):
      variable = _variable(memory, kwargs)
    if not variable.is_initialized():  # its ps has restarted
      return None
    _check(memory.name, _entry(variable), entry)
    variable.attached = True
    return variable

  def _wait_for(
    self,
    memory: compat.Memory,
    kwargs: dict[str, Any],
    timeout_secs: float | None,
  ) -> SharedVariable:
    deadline = deadlines.after(timeout_secs)
    attach = functools.partial(self._attach, memory, kwargs)
    while (variable := self.surviving(attach)) is None:
      if deadlines.is_over(deadline):
        raise errors.DeadlineError(
          f'After {timeout_secs:g} seconds, {self._chief} has not created the '
          f'variable {memory.name!r}. Is it alive, and does it run the same '
          'program?'
        )
      time.sleep(timeouts.current().poll_secs)
    return variable


def _name(name: str) -> str:
  scope = tf.get_current_name_scope()
  return f'{scope}/{name}' if scope else name


def _with_type(name: str, kwargs: dict[str, Any]) -> dict[str, Any]:
  kwargs = variable_types.with_type(kwargs)
  if kwargs.get('shape') is None or kwargs.get('dtype') is None:
    raise ValueError(
      f'{name}: shape {kwargs.get("shape")} and dtype {kwargs.get("dtype")} '
      'must be known before a shared variable is made. Give both.'
    )
  shape, dtype = tf.TensorShape(kwargs['shape']), tf.as_dtype(kwargs['dtype'])
  return {**kwargs, 'shape': shape, 'dtype': dtype}


def _variable(memory: compat.Memory, kwargs: dict[str, Any]) -> SharedVariable:
  return SharedVariable(
    memory=memory,
    name=kwargs['name'],
    shape=kwargs['shape'],
    dtype=kwargs['dtype'],
    trainable=kwargs.get('trainable'),
    constraint=kwargs.get('constraint'),
    synchronization=kwargs.get('synchronization'),
    aggregation=kwargs.get('aggregation'),
    distribute_strategy=kwargs.get('distribute_strategy'),
  )


def _entry(variable: SharedVariable) -> name_table.Entry:
  shape = tuple(variable.shape.as_list())
  return name_table.Entry(variable.device, variable.dtype.name, shape)


def _check(
  name: str, wanted: name_table.Entry, found: name_table.Entry
) -> None:
  if wanted != found:
    raise ValueError(
      f'The variable {name!r} on {found.device} is {found}, and this program '
      f'wants {wanted}. Start all tasks with the same program, or the ps '
      'afresh.'
    )
