"""Variables with a twin elsewhere, to which everything is written, too.

In a function, each operation that writes to such a variable is followed by one
for its twin, with the same inputs. Where operations are made, all ways to write
are seen: variables' methods, anybody's optimizers, raw operations. Outside of
functions, those are variables' methods and the restoring of checkpoints.
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import dataclasses
import functools
import re
import threading
from typing import Any
import weakref

import tensorflow as tf
from tensorflow.python.framework import func_graph
from tensorflow.python.framework import ops
from tensorflow.python.ops import resource_variable_ops

from tfps._compat import handles
from tfps._compat import shared_variables

_WRITE = re.compile(
  r'Assign(Add|Sub)?VariableOp|Resource(Sparse)?Apply\w+|ResourceScatter\w+'
  r'|ResourceStridedSliceAssign'
)
# Methods that write, and are no `assign`.
_METHODS = (
  'assign_add',
  'assign_sub',
  'batch_scatter_update',
  *(
    f'scatter_{what}'
    for what in ('add', 'sub', 'update', 'min', 'max', 'mul', 'div')
  ),
  *(f'scatter_nd_{what}' for what in ('add', 'sub', 'update', 'min', 'max')),
)

# By the identity of a variable's handle: that handle, and the twin.
_BY_HANDLE: dict[int, tuple[tf.Tensor, Any]] = {}
# Of an operation that writes to a variable: that for its twin.
_SECOND = '_tfps_second'
# Of what stands for a handle in a function.
_TWIN = '_tfps_twin'
_own = threading.local()


def make(variable: Any, device: str) -> Any:
  """A variable like another one, on a device, that has no value yet."""
  own = handles.inner(variable)
  with tf.init_scope(), tf.device(device):
    if isinstance(own, shared_variables.NamedVariable):
      name = f'{own.memory.name}/twin'
      return shared_variables.NamedVariable(
        memory=dataclasses.replace(own.memory, name=name),
        name=name,
        shape=own.shape,
        dtype=own.dtype,
        trainable=False,
      )
    return resource_variable_ops.UninitializedVariable(
      shape=own.shape,
      dtype=own.dtype,
      name=f'{own._handle_name}/twin',
      trainable=False,
    )


class ReplicatedWrites:
  """Variables and their twins; what is written to the ones goes to both.

  Until this object is gone.
  """

  def __init__(self) -> None:
    self._pairs: list[tuple[Any, Any]] = []
    self._handles: list[tf.Tensor] = []
    weakref.finalize(self, _forget, self._handles)

  def add(self, variable: Any, twin: Any) -> None:
    """Has everything that is written to a variable from now on go to both."""
    _take_writes()
    self._pairs.append((variable, twin))
    self._enter(variable, twin)

  def note_handles(self) -> None:
    """To be called once some of them have new handles."""
    _forget(self._handles)
    for variable, twin in self._pairs:
      self._enter(variable, twin)

  def _enter(self, variable: Any, twin: Any) -> None:
    handle = handles.inner(variable)._handle
    self._handles.append(handle)
    _BY_HANDLE[id(handle)] = handle, twin


@contextlib.contextmanager
def apart() -> Iterator[None]:
  """Within it, what is written to a variable is not written to its twin."""
  before = _are_apart()
  _own.are_apart = True
  try:
    yield
  finally:
    _own.are_apart = before


def of(variable: Any) -> Any:
  """A variable's twin, or None."""
  return _of_handle(handles.inner(variable)._handle) if _BY_HANDLE else None


def is_write(operation: Any) -> bool:
  """Whether an operation itself writes to a variable."""
  return bool(_WRITE.fullmatch(operation.type))


def handles_of_all() -> set[int]:
  """The identities of all twins' handles."""
  return {id(twin.handle) for _, twin in _BY_HANDLE.values()}


def second(operation: Any) -> Any:
  """What does to the twin what an operation does to its variable, or None."""
  return getattr(operation, _SECOND, None)


def repeat(variable: Any, method: str, *args: Any, **kwargs: Any) -> None:
  """Outside of functions, writes to the twin what a variable was just given."""
  twin = None if _are_apart() or not tf.executing_eagerly() else of(variable)
  if twin is not None:
    getattr(twin, method)(*args, **kwargs)


def writing_to_both(kind: Any) -> dict[str, Callable[..., Any]]:
  """The methods by which a class of variables writes, other than `assign`."""
  return {name: _writing_to_both(kind, name) for name in _METHODS}


def _writing_to_both(kind: Any, name: str) -> Callable[..., Any]:
  write = getattr(kind, name)

  @functools.wraps(write)
  def both(self: Any, *args: Any, **kwargs: Any) -> Any:
    written = write(self, *args, **kwargs)
    repeat(self, name, *args, **kwargs)
    return written

  return both


def _forget(entered: list[tf.Tensor]) -> None:
  for handle in entered:
    _BY_HANDLE.pop(id(handle), None)
  entered.clear()


def _of_handle(handle: Any) -> Any:
  """The twin of a variable whose handle it is, or stands for in a function."""
  found = _BY_HANDLE.get(id(handle))
  if found is not None and found[0] is handle:
    return found[1]
  return getattr(handle, _TWIN, None)


def _are_apart() -> bool:
  return getattr(_own, 'are_apart', False)


@functools.cache
def _take_writes() -> None:
  capture = func_graph.FuncGraph.capture
  create_operation = func_graph.FuncGraph._create_op_internal
  assign = resource_variable_ops.shape_safe_assign_variable_handle

  @functools.wraps(capture)
  def capture_both(self: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    captured = capture(self, tensor, *args, **kwargs)
    twin = _of_handle(tensor) if _BY_HANDLE else None
    if twin is not None:
      setattr(captured, _TWIN, twin)
    return captured

  @functools.wraps(create_operation)
  def create_both(
    self: Any,
    op_type: str,
    inputs: Any,
    dtypes: Any = None,
    input_types: Any = None,
    name: str | None = None,
    attrs: Any = None,
    op_def: Any = None,
    compute_device: bool = True,
  ) -> Any:
    given = dtypes, input_types, name, attrs, op_def, compute_device
    made = create_operation(self, op_type, inputs, *given)
    if not _BY_HANDLE or _are_apart() or not _WRITE.fullmatch(op_type):
      return made
    twins = [_of_handle(tensor) for tensor in inputs]
    if twins[0] is None:
      return made
    given = dtypes, input_types, f'{op_type}_twin', attrs, op_def, True
    inputs = [
      tensor if twin is None else twin.handle
      for tensor, twin in zip(made.inputs, twins, strict=True)
    ]
    with (
      ops.colocate_with(None, ignore_existing=True),
      tf.device(twins[0].device),
    ):
      setattr(made, _SECOND, create_operation(self, op_type, inputs, *given))
    return made

  @functools.wraps(assign)
  def assign_both(handle: Any, *args: Any, **kwargs: Any) -> Any:
    # By which checkpoints are restored.
    result = assign(handle, *args, **kwargs)
    twin = None if _are_apart() else _of_handle(handle)
    if twin is not None and tf.executing_eagerly():
      assign(twin.handle, *args, **kwargs)
    return result

  func_graph.FuncGraph.capture = capture_both
  func_graph.FuncGraph._create_op_internal = create_both
  resource_variable_ops.shape_safe_assign_variable_handle = assign_both
