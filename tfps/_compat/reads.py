"""Interception of the variable reads and writes of functions being traced.

TensorFlow reads and writes each variable where it is used, one at a time. A
`Reader` can replace that. Only `_read_variable_op` and `sparse_read` of a
resource variable see all reads, and gradients reach the variable only if the
tape is told of the replaced read.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import functools
from typing import Any
from typing import Protocol
import weakref

import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.framework import ops
from tensorflow.python.ops import control_flow_v2_func_graphs as control_flow
from tensorflow.python.ops import resource_variable_ops

from tfps._compat import gathers
from tfps._compat import graphs
from tfps._compat import row_counts
from tfps._compat import write_counts

_Variable = resource_variable_ops.BaseResourceVariable


class Reader(Protocol):
  """Replacement of variable reads and writes within a function.

  A read that returns None, and a write that returns False, is left to
  TensorFlow.
  """

  def read(self, variable: Any, place: Any) -> tf.Tensor | None:
    """Returns the variable's value for the graph `place`, or None."""

  def read_rows(
    self, variable: Any, indices: Any, place: Any
  ) -> tf.Tensor | None:
    """Returns rows of the variable for the graph `place`, or None."""

  def read_keyed(
    self,
    variable: Any,
    keys: tf.Tensor,
    read: Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]],
  ) -> tf.Tensor | None:
    """Returns the rows of keys, or None.

    Args:
      variable: has the rows.
      keys: different keys.
      read: returns the rows, on the ps, and what updates name them by.
    """

  def compute_on_ps(
    self, variable: Any, function: Callable[[Any], tf.Tensor]
  ) -> tf.Tensor | None:
    """Returns a scalar function of the variable's value, or None."""

  def note_shards(self, gradient: Any, parts: list[Any]) -> None:
    """Notes of which gradients of shards a gradient was joined."""

  def write(self, variable: Any, value: Any, place: Any, *, sign: int) -> bool:
    """Assigns a value in the graph `place`; returns whether it did.

    Args:
      variable: to be written to.
      value: the operand.
      place: the graph of the write.
      sign: 0 to assign the value, 1 to add and -1 to subtract it.
    """


# By graph, not by thread: a replica's step is traced in a thread of its own,
# branches and loops in graphs of their own.
_READERS: Any = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def reading(reader: Reader) -> Iterator[None]:
  """Uses a reader for the function that is being traced, within a context."""
  _take_reads()
  graph = ops.get_default_graph()
  before = _READERS.get(graph)
  _READERS[graph] = reader
  try:
    yield
  finally:
    if before is None:
      del _READERS[graph]
    else:
      _READERS[graph] = before


def reader() -> Reader | None:
  """Returns the reader of the function that is being traced, or None."""
  if not _READERS or tf.executing_eagerly():
    return None
  graph = ops.get_default_graph()
  while graph is not None and graph not in _READERS:
    if not isinstance(graph, control_flow.ControlFlowFuncGraph):
      # An inner function is called with what it captured while traced.
      return None
    graph = graph.outer_graph
  found: Reader | None = _READERS.get(graph)
  return found


def is_function_being_traced() -> bool:
  """Returns whether operations go into a function, not a session's graph."""
  return (
    not tf.executing_eagerly() and ops.get_default_graph().building_function
  )


def note_value(value: tf.Tensor, variable: Any) -> None:
  """Notes that a tensor has the value that a variable has here.

  Gathers from the tensor then read rows of the variable.

  Args:
    value: the tensor.
    variable: a variable, or one in shards, whose `sparse_read` is used.
  """
  if is_function_being_traced():
    gathers.note(value, variable, write_counts.num_writes_here(variable))


def graph_of(tensors: Sequence[tf.Tensor]) -> Any:
  """Returns a context of the graph that has some tensors.

  What is made of them there, rather than in a loop that is being traced, enters
  the loop only if something in the loop uses it.
  """
  if tf.executing_eagerly():
    return contextlib.nullcontext()
  graphs = {tensor.graph for tensor in tensors}
  if graphs == {ops.get_default_graph()} or len(graphs) > 1:
    return contextlib.nullcontext()
  return graphs.pop().as_default()


def is_in_vectorized_loop() -> bool:
  """Returns whether the body of a `tf.vectorized_map` is being traced.

  What the body has made is converted afterwards, from operations as they are
  then. Nothing but the name of its scope tells.
  """
  graph = ops.get_default_graph()
  while graph is not None:
    if 'loop_body' in graph.get_name_scope().split('/'):
      return True
    graph = getattr(graph, 'outer_graph', None)
  return False


def write(variable: Any, value: tf.Tensor, *, is_added: bool) -> None:
  """Assigns or adds a value without asking any reader."""
  ops = tf.raw_ops
  assign = ops.AssignAddVariableOp if is_added else ops.AssignVariableOp
  assign(resource=variable.handle, value=value)


def unique_id(variable: Any) -> str:
  """Returns an identifier that no other variable of this process has."""
  return str(variable._unique_id)


def note_read(variable: Any, value: tf.Tensor) -> None:
  """Records on the tape that a tensor is a variable's value."""
  _note('ReadVariableOp', variable, value, lambda gradient: [gradient])


def note_rows(
  variable: Any, rows: tf.Tensor, gradient_of: Callable[[tf.Tensor], Any]
) -> None:
  """Records on the tape that a tensor is some of a variable's rows.

  Args:
    variable: that has the rows.
    rows: the tensor.
    gradient_of: converts the rows' gradient to the variable's.
  """
  _note('ResourceGather', variable, rows, lambda g: [gradient_of(g)])


def note_function(
  variable: Any, value: tf.Tensor, gradient_of: Callable[[tf.Tensor], Any]
) -> None:
  """Records on the tape that a tensor was computed from a variable.

  Args:
    variable: that it was computed from.
    value: the tensor.
    gradient_of: converts the tensor's gradient to the variable's.
  """
  _note('Identity', variable, value, lambda g: [gradient_of(g)])


def read_distinct(
  read: Callable[[tf.Tensor], tf.Tensor], indices: tf.Tensor, row_shape: Any
) -> tf.Tensor:
  """Reads rows of which some may be equal; each distinct one is read once.

  The gradient of TensorFlow's `gather` would take a dozen operations.

  Args:
    read: returns rows, of shape `[n, *row_shape]`, given their n numbers.
    indices: row numbers of any shape.
    row_shape: static shape of a row.

  Returns:
    Rows in the shape `[*indices.shape, *row_shape]`.
  """
  is_flat = indices.shape.rank == 1
  distinct, positions = tf.unique(
    indices if is_flat else tf.reshape(indices, [-1])
  )
  number = tf.size(distinct, tf.int64)
  row_counts.note(distinct, number)
  read_rows = read(distinct)
  with stop_recording():
    rows = tf.raw_ops.GatherV2(
      params=read_rows, indices=positions, axis=constant(0, tf.int32)
    )

  def sum_by_row(gradient: Any) -> list[tf.Tensor]:
    gradient = tf.convert_to_tensor(gradient)
    total = tf.math.unsorted_segment_sum(gradient, positions, number)
    row_counts.note(total, number)
    return [total]

  record.record_operation('GatherV2', [rows], [read_rows], sum_by_row)
  if is_flat:
    return rows
  shape = indices.shape + row_shape
  if shape.is_fully_defined():
    return tf.reshape(rows, shape)
  full = tf.concat([tf.shape(indices), row_shape], axis=0)
  return tf.ensure_shape(tf.reshape(rows, full), shape)


def _note(
  name: str, variable: Any, value: tf.Tensor, gradients: Callable[..., Any]
) -> None:
  resource_variable_ops.variable_accessed(variable)
  record.record_operation(name, [value], [variable.handle], gradients)


def constant(value: int | tuple[int, ...], dtype: tf.DType) -> tf.Tensor:
  """Returns a constant, of which a graph has one for each device."""
  if tf.executing_eagerly():
    return tf.constant(value, dtype)
  key = 'constant', value, dtype, current_device()
  return graphs.once(key, lambda: tf.constant(value, dtype))


def current_device() -> str:
  """Returns the device of operations made here; empty if it is open."""
  graph = ops.get_default_graph()
  if list(graph._colocation_stack.peek_objs()):
    return _device_of_an_operation()
  scopes = tuple(graph._device_function_stack.peek_objs())
  known = _DEVICES.setdefault(graph, {})
  if scopes not in known:
    known[scopes] = _device_of_an_operation()
  return known[scopes]


# By graph and by the device scopes that are active in it.
_DEVICES: Any = weakref.WeakKeyDictionary()


def _device_of_an_operation() -> str:
  device: str = tf.raw_ops.NoOp().device
  return device


def is_recording() -> bool:
  """Returns whether a `tf.GradientTape` records what is done here."""
  return bool(record.could_possibly_record())


def stop_recording() -> Any:
  """Returns a context in which the tape records nothing."""
  return record.stop_recording()


@functools.cache
def _take_reads() -> None:
  read = _Variable._read_variable_op
  sparse_read = _Variable.sparse_read

  @functools.wraps(read)
  def read_otherwise(self: Any, *args: Any, **kwargs: Any) -> Any:
    own = reader()
    value = own and own.read(self, ops.get_default_graph())
    if value is None:
      value = read(self, *args, **kwargs)
    if not tf.executing_eagerly() and is_on_ps(self):
      note_value(value, self)
    return value

  @functools.wraps(sparse_read)
  def sparse_read_otherwise(
    self: Any, indices: Any, name: str | None = None
  ) -> Any:
    own = reader()
    with _uncolocated():
      rows = own and own.read_rows(self, indices, ops.get_default_graph())
    return sparse_read(self, indices, name) if rows is None else rows

  _Variable._read_variable_op = read_otherwise
  _Variable.sparse_read = sparse_read_otherwise
  _take_writes()
  gathers.take_part(write_counts.num_writes_here)


def is_on_ps(variable: Any) -> bool:
  """Returns whether our strategies have put a variable or its shards on ps."""
  first = getattr(variable, 'variables', [variable])[0]
  device = getattr(first, 'device', None)
  if not device or tf.DeviceSpec.from_string(device).job != 'ps':
    return False
  # TensorFlow's own strategies for ps keep their ways.
  return hasattr(first._distribute_strategy, 'keras_functions')


def _uncolocated() -> Any:
  """Places operations where they are called, not where a variable is.

  `tf.nn.embedding_lookup` colocates its operations with the variable. Rows that
  were read would be sent back to be sorted, and be read again.
  """
  graph = ops.get_default_graph()
  if not list(graph._colocation_stack.peek_objs()):
    return contextlib.nullcontext()
  return ops.colocate_with(None, ignore_existing=True)


def _take_writes() -> None:
  def replace(name: str, *, sign: int) -> None:
    theirs = getattr(_Variable, name)

    @functools.wraps(theirs)
    def write_otherwise(
      self: Any, value: Any, *args: Any, **kwargs: Any
    ) -> Any:
      own = reader()
      place = ops.get_default_graph()
      if own is not None and own.write(self, value, place, sign=sign):
        return self
      return theirs(self, value, *args, **kwargs)

    setattr(_Variable, name, write_otherwise)

  replace('assign', sign=0)
  replace('assign_add', sign=1)
  replace('assign_sub', sign=-1)
