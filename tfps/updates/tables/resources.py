"""Resources that a shard consists of: variables and hash tables on its ps."""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from typing import Any
import uuid

import tensorflow as tf

from tfps._compat import graphs
from tfps._compat import handles as handles_lib
from tfps._compat import open_shapes
from tfps._compat import replicated_writes
from tfps.updates import rows as rows_lib
from tfps.updates.tables import storage
from tfps.variables import growing

_KEYS = 'keys'


@dataclasses.dataclass(frozen=True)
class HashTable:
  """Hash table of TensorFlow from int64 keys to int64 values.

  Attributes:
    name: no other hash table on the device has it.
    device: that it is on.
  """

  name: str
  device: str
  dtype = tf.int64
  shape = tf.TensorShape([None])

  @property
  def handle(self) -> tf.Tensor:
    """Handle, of which a graph has one."""
    return graphs.once(self, self._make_handle)

  def _make_handle(self) -> tf.Tensor:
    with tf.device(self.device):
      return tf.raw_ops.MutableHashTableV2(
        key_dtype=tf.int64, value_dtype=tf.int64, shared_name=self.name
      )


@dataclasses.dataclass(frozen=True)
class Kind:
  """Properties of a resource without its handle; equal for similar ones."""

  name: str
  dtype: tf.DType
  shape: tuple[int | None, ...]
  stored: storage.StoredRows | None

  def bound(self, handle: tf.Tensor) -> 'Resource':
    """Returns a resource of the kind, given its handle."""
    resource = Resource(handle, self.dtype, tf.TensorShape(self.shape))
    if self.stored is not None:
      storage.note(resource, self.stored)
    return resource


@dataclasses.dataclass(eq=False)
class Resource:
  """A variable or hash table in a function that is given its handle.

  The function runs on the device of the resource, so that it names none.
  """

  handle: tf.Tensor
  dtype: tf.DType
  shape: tf.TensorShape
  device: str = ''


def with_hash_tables(name: str, variables: Mapping[str, Any]) -> dict[str, Any]:
  """Returns variables and the hash tables that make an index of keys.

  Args:
    name: that no other shard on the device has.
    variables: by name. Beside each that ends in `keys` are two hash tables.
  """
  values = dict(variables)
  for key, variable in variables.items():
    if key.endswith(_KEYS):
      prefix = key.removesuffix(_KEYS)
      for what in ('index', 'digest'):
        table = HashTable(f'{name}/{prefix}{what}', variable.device)
        values[prefix + what] = table
  return values


def kinds(resources: Mapping[str, Any]) -> tuple[Kind, ...]:
  """Returns the kinds of resources, given by name."""
  return tuple(
    Kind(name, each.dtype, tuple(each.shape), storage.of(each))
    for name, each in resources.items()
  )


def handles(resources: Mapping[str, Any]) -> list[tf.Tensor]:
  """Returns the handles of resources."""
  return [each.handle for each in resources.values()]


def bound(
  own: Iterable[Kind], given: Sequence[tf.Tensor]
) -> dict[str, Resource]:
  """Returns resources by name, given their kinds and handles."""
  return {
    kind.name: kind.bound(handle)
    for kind, handle in zip(own, given, strict=True)
  }


def gather(variable: Any, rows: Any) -> tf.Tensor:
  """Returns rows of a variable, given their numbers."""
  stored = storage.of(variable)
  if stored is not None:
    return stored.read(variable, rows)
  return rows_lib.read(variable, rows)


def scatter(variable: Any, rows: tf.Tensor, values: tf.Tensor) -> Any:
  """Writes rows of a variable, given their numbers.

  Returns:
    The operation, or a tensor, after which they are written.
  """
  stored = storage.of(variable)
  if stored is not None:
    return stored.write(variable, rows, values)
  return rows_lib.write(variable, rows, values)


def fit(variable: Any, needed: tf.Tensor, *, has_spare: bool = True) -> Any:
  """Lets a variable grow, as `growing.fit`, unless its rows are stored."""
  if storage.of(variable) is not None:
    return tf.constant(False)
  return growing.fit(variable, needed, has_spare=has_spare)


def num_rows(variable: Any) -> tf.Tensor:
  """Returns how many rows a variable has at present, an int64 scalar."""
  stored = storage.of(variable)
  if stored is not None:
    return stored.num_rows(variable)
  return open_shapes.num_rows(variable)


def unique_name(variable: Any) -> str:
  """Returns a name for what belongs to a variable on its device.

  All processes that use the variable know the name, and no other has it.
  """
  memory = getattr(handles_lib.inner(variable), 'memory', None)
  if memory is None:  # the variable is private to this process
    return f'tfps/keys/{uuid.uuid4().hex}'
  return f'tfps/keys/{memory.container}/{memory.name}'


def after(*operations: Any) -> Any:
  """Returns a context for what runs after operations; None are left out."""
  return tf.control_dependencies(
    [operation for operation in operations if operation is not None]
  )


def after_both(*writes: Any) -> Any:
  """Returns a context for what runs after writes, and those to replicas."""
  replicas = [replicated_writes.replica_write(write) for write in writes]
  return after(*writes, *replicas)
