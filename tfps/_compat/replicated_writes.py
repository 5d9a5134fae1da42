"""Variables with a replica on another device that receives the same writes.

In a function, each operation that writes to such a variable is followed by one
for its replica, with the same inputs. They are added where operations are made,
which covers variables' methods, all optimizers and raw operations. Outside of
functions, variables' methods and the restore of checkpoints are covered.
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
from tfps._compat import large_values
from tfps._compat import open_shapes
from tfps._compat import shared_variables

_WRITE = re.compile(
  r'Assign(Add|Sub)?VariableOp|Resource(Sparse)?Apply\w+|ResourceScatter\w+'
  r'|ResourceStridedSliceAssign'
)
# Methods that write, besides `assign`.
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

# The identity of a variable's handle -> that handle, and the replica.
_BY_HANDLE: dict[int, tuple[tf.Tensor, Any]] = {}
# Attribute of an operation that writes to a variable: the replica's operation.
_REPLICA_WRITE = '_tfps_replica_write'
# Attribute of the capture of a variable's handle: the replica.
_REPLICA = '_tfps_replica'
_own = threading.local()


def make(variable: Any, device: str) -> Any:
  """Makes an uninitialized variable on a device that is like another one."""
  own = handles.inner(variable)
  with tf.init_scope(), tf.device(device):
    replica = _like(own)
  if open_shapes.has_open_rows(own):
    open_shapes.open_rows(replica)
  large_values.copy_to(own, replica)
  return replica


def _like(own: Any) -> Any:
  if isinstance(own, shared_variables.NamedVariable):
    name = f'{own.memory.name}/replica'
    return shared_variables.NamedVariable(
      memory=dataclasses.replace(own.memory, name=name),
      name=name,
      shape=open_shapes.of_handle(own),
      dtype=own.dtype,
      trainable=False,
    )
  return resource_variable_ops.UninitializedVariable(
    shape=open_shapes.of_handle(own),
    dtype=own.dtype,
    name=f'{own._handle_name}/replica',
    trainable=False,
  )


class ReplicatedWrites:
  """Pairs of a variable and its replica, to which all writes go, too.

  The pairs exist as long as this object.
  """

  def __init__(self) -> None:
    self._pairs: list[tuple[Any, Any]] = []
    self._handles: list[tf.Tensor] = []
    weakref.finalize(self, _forget, self._handles)

  def add(self, variable: Any, replica: Any) -> None:
    """Starts to send all writes of a variable to its replica, too."""
    _take_writes()
    self._pairs.append((variable, replica))
    self._enter(variable, replica)

  def update_handles(self) -> None:
    """Takes note that variables have got new handles."""
    _forget(self._handles)
    for variable, replica in self._pairs:
      self._enter(variable, replica)

  def _enter(self, variable: Any, replica: Any) -> None:
    handle = handles.inner(variable)._handle
    self._handles.append(handle)
    _BY_HANDLE[id(handle)] = handle, replica


@contextlib.contextmanager
def suspended() -> Iterator[None]:
  """Keeps this thread's writes from going to replicas within a context."""
  before = _are_suspended()
  _own.are_suspended = True
  try:
    yield
  finally:
    _own.are_suspended = before


def replica_of(variable: Any) -> Any:
  """Returns a variable's replica, or None."""
  return _of_handle(handles.inner(variable)._handle) if _BY_HANDLE else None


def is_write(operation: Any) -> bool:
  """Returns whether an operation itself writes to a variable."""
  return bool(_WRITE.fullmatch(operation.type))


def replica_handles() -> set[int]:
  """Returns the identities of all replicas' handles."""
  return {id(replica.handle) for _, replica in _BY_HANDLE.values()}


def replica_write(operation: Any) -> Any:
  """Returns the replica's operation for one that writes, or None."""
  return getattr(operation, _REPLICA_WRITE, None)


def repeat(variable: Any, method: str, *args: Any, **kwargs: Any) -> None:
  """Repeats a variable's write on its replica, outside of functions."""
  is_off = _are_suspended() or not tf.executing_eagerly()
  replica = None if is_off else replica_of(variable)
  if replica is not None:
    getattr(replica, method)(*args, **kwargs)


def writing_to_both(kind: Any) -> dict[str, Callable[..., Any]]:
  """Returns replacements of the writing methods of a class, but `assign`."""
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
  """Returns the replica for a handle or its capture in a function, or None."""
  found = _BY_HANDLE.get(id(handle))
  if found is not None and found[0] is handle:
    return found[1]
  return getattr(handle, _REPLICA, None)


def _are_suspended() -> bool:
  return getattr(_own, 'are_suspended', False)


@functools.cache
def _take_writes() -> None:
  capture = func_graph.FuncGraph.capture
  create_operation = func_graph.FuncGraph._create_op_internal
  assign = resource_variable_ops.shape_safe_assign_variable_handle

  @functools.wraps(capture)
  def capture_both(self: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    captured = capture(self, tensor, *args, **kwargs)
    replica = _of_handle(tensor) if _BY_HANDLE else None
    if replica is not None:
      setattr(captured, _REPLICA, replica)
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
    if not _BY_HANDLE or _are_suspended() or not _WRITE.fullmatch(op_type):
      return made
    replicas = [_of_handle(tensor) for tensor in inputs]
    if replicas[0] is None:
      return made
    given = dtypes, input_types, f'{op_type}_replica', attrs, op_def, True
    inputs = [
      tensor if replica is None else replica.handle
      for tensor, replica in zip(made.inputs, replicas, strict=True)
    ]
    with (
      ops.colocate_with(None, ignore_existing=True),
      tf.device(replicas[0].device),
    ):
      repeated = create_operation(self, op_type, inputs, *given)
      setattr(made, _REPLICA_WRITE, repeated)
    return made

  @functools.wraps(assign)
  def assign_both(handle: Any, *args: Any, **kwargs: Any) -> Any:
    # Checkpoints are restored by this function.
    result = assign(handle, *args, **kwargs)
    replica = None if _are_suspended() else _of_handle(handle)
    if replica is not None and tf.executing_eagerly():
      assign(replica.handle, *args, **kwargs)
    return result

  func_graph.FuncGraph.capture = capture_both
  func_graph.FuncGraph._create_op_internal = create_both
  resource_variable_ops.shape_safe_assign_variable_handle = assign_both
