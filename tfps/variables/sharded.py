"""Sharded variables, which are used like one variable.

TensorFlow's class has no gradient, returns rows of `sparse_read` in an order
other than requested, and looks up wrong rows for embeddings.
"""

from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfps._compat import reads
from tfps._compat import strategy as compat


class ShardedVariable(tf.__internal__.distribute.ShardedVariable):
  """A variable whose rows are divided among several variables.

  If rows cannot be divided evenly, the first shards have one row more. Unlike
  TensorFlow's class it supports `tf.GradientTape`: the gradient is dense, or
  `tf.IndexedSlices` if only rows were read.
  """

  @property
  def _type_spec(self) -> 'ShardedVariableSpec':
    return ShardedVariableSpec(*super()._type_spec._serialize())

  @property
  def __composite_gradient__(self) -> '_ShardGradients':
    return _ShardGradients()

  @property
  def handle(self) -> 'ShardedVariable':
    """A stand-in for the handles of all shards in gradient computations."""
    return self

  @property
  def trainable(self) -> bool:
    """True if optimizers update it."""
    return bool(self._variables[0].trainable)

  @property
  def constraint(self) -> Any:
    """The shards' constraint, which optimizers ask for; None for none."""
    return self._variables[0].constraint

  @property
  def devices(self) -> list[str]:
    """The device of each shard."""
    return [shard.device for shard in self._variables]

  def value(self) -> tf.Tensor:
    """Returns all rows, on the current device."""
    parts = [shard.value() for shard in self.variables]
    with reads.graph_of(parts):
      value = tf.concat(parts, axis=0)
    if reads.is_on_ps(self):
      reads.note_value(value, self)
    return value

  def read_value(self) -> tf.Tensor:
    """Returns all rows, on the current device."""
    return self.value()

  def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
    del copy  # the shards' values are copied in any case
    return np.asarray(self.numpy(), dtype)

  def assign(self, value: Any, *args: Any, **kwargs: Any) -> Any:
    """Assigns all rows; see `tf.Variable.assign`."""
    is_array = isinstance(value, np.ndarray)
    if not is_array or value.shape != tuple(self.shape):
      return super().assign(value, *args, **kwargs)
    first = 0
    for shard in self.variables:
      # A view: as a tensor, all of it would be copied.
      shard.assign(value[first : first + shard.shape[0]])
      first += shard.shape[0]
    return self

  def __getitem__(self, spec: Any) -> tf.Tensor:
    """Returns what a tensor of all rows would; see `tf.Tensor.__getitem__`.

    A row whose number is a tensor is gathered by its ps. All rows are read if
    the bounds of a slice are tensors.
    """
    first, *others = spec if isinstance(spec, list | tuple) else (spec,)
    if not any(tf.is_tensor(part) for part in _parts([first, *others])):
      return super().__getitem__(spec)
    if not tf.is_tensor(first) or first.shape.rank != 0 or first.dtype.is_bool:
      return self.value()[spec]
    row = self.sparse_read(tf.where(first < 0, first + self.shape[0], first))
    return row[tuple(others)] if others else row

  def sparse_read(self, indices: Any, name: str | None = None) -> tf.Tensor:
    """Returns rows, in the order of the indices.

    Each ps gathers its own rows, and each row is transferred once.

    Args:
      indices: row numbers of any shape.
      name: name of the operations.

    Returns:
      Rows in the shape `indices.shape + self.shape[1:]`.
    """
    if compat.is_saving():  # to the SavedModel this is one variable
      return self.variables[0].sparse_read(indices, name=name)
    indices = tf.convert_to_tensor(indices)
    with tf.name_scope(name or 'sparse_read'):
      return reads.read_distinct(self._gather, indices, self.shape[1:])

  def _gather(self, distinct: tf.Tensor) -> tf.Tensor:
    local_indices, shard_of = self._decompose_indices(distinct)
    order = tf.dynamic_partition(
      tf.range(tf.size(distinct)), shard_of, len(self._variables)
    )
    rows = [
      shard.sparse_read(local)
      for shard, local in zip(self._variables, local_indices, strict=True)
    ]
    return tf.dynamic_stitch(order, rows)

  def split(self, value: Any) -> list[Any]:
    """Splits a tensor or `tf.IndexedSlices` of all rows by shard."""
    if isinstance(value, tf.IndexedSlices):
      return list(self._decompose_indexed_slices(value))
    return list(tf.split(value, [s.shape[0] for s in self._variables]))


def _parts(spec: Sequence[Any]) -> Iterator[Any]:
  """Yields the numbers of an index, those of its slices included."""
  for each in spec:
    if isinstance(each, slice):
      yield from (each.start, each.stop, each.step)
    else:
      yield each


class ShardedVariableSpec(compat.ShardedVariableSpec):
  """The type of a `ShardedVariable`."""

  value_type = property(lambda self: ShardedVariable)

  def _from_components(self, variables: Sequence[Any]) -> ShardedVariable:
    return ShardedVariable(variables)


class _ShardGradients(compat.CompositeTensorGradient):
  """Differentiates by each shard, and concatenates the gradients."""

  def get_gradient_components(self, value: ShardedVariable) -> list[Any]:
    return [shard.handle for shard in value.variables]

  def replace_gradient_components(
    self, value: ShardedVariable, component_grads: list[Any]
  ) -> Any:
    found = [g for g in component_grads if g is not None]
    if not found:
      return None
    if all(isinstance(g, tf.IndexedSlices) for g in found):
      joined = _join_rows(value, component_grads)
      return (
        _noted(joined, found) if len(found) == len(component_grads) else joined
      )
    dense = [
      tf.zeros(shard.shape, shard.dtype) if g is None else g
      for shard, g in zip(value.variables, component_grads, strict=True)
    ]
    return _noted(
      tf.concat([tf.convert_to_tensor(g) for g in dense], axis=0), dense
    )


def _noted(gradient: Any, parts: list[Any]) -> Any:
  """Returns a joined gradient, of which steps can take the parts again."""
  reader = reads.reader()
  if reader is not None:
    reader.note_shards(gradient, parts)
  return gradient


def _join_rows(
  variable: ShardedVariable, gradients: Sequence[tf.IndexedSlices | None]
) -> tf.IndexedSlices:
  first_rows = np.cumsum([0, *(s.shape[0] for s in variable.variables[:-1])])
  found = [
    (g, tf.cast(first, g.indices.dtype))
    for g, first in zip(gradients, first_rows, strict=True)
    if g is not None
  ]
  return tf.IndexedSlices(
    values=tf.concat([g.values for g, _ in found], axis=0),
    indices=tf.concat([g.indices + first for g, first in found], axis=0),
    dense_shape=tf.constant(
      variable.shape.as_list(), found[0][0].indices.dtype
    ),
  )


def _to_tensor(
  variable: ShardedVariable,
  dtype: tf.DType | None = None,
  name: str | None = None,
  as_ref: bool = False,
) -> Any:
  """Converts to a tensor, within lookups of embeddings, too.

  TensorFlow refuses it there. A gather from the tensor reads rows.
  """
  del name
  if as_ref or (dtype is not None and dtype != variable.dtype):
    return NotImplemented
  return variable.value()


tf.register_tensor_conversion_function(ShardedVariable, _to_tensor, priority=50)


def _embedding_lookup(
  params: Any,
  ids: Any,
  partition_strategy: str = 'mod',
  name: str | None = None,
  validate_indices: bool = True,
  max_norm: float | None = None,
) -> Any:
  del partition_strategy, validate_indices  # the variable has its own strategy
  variable, *others = params if isinstance(params, list) else [params]
  if others:  # each is a part of the rows, as the strategy says
    return NotImplemented
  rows = variable.sparse_read(ids, name=name or 'embedding_lookup')
  return rows if max_norm is None else _clip(rows, ids, max_norm)


def _embedding_lookup_sparse(
  params: Any,
  sp_ids: Any,
  sp_weights: Any,
  combiner: str | None = None,
  max_norm: float | None = None,
  name: str | None = None,
  allow_fast_lookup: bool = False,
) -> Any:
  ids, positions = tf.unique(sp_ids.values)
  rows = _embedding_lookup(params, ids, max_norm=max_norm)
  if rows is NotImplemented:
    return rows
  return tf.nn.embedding_lookup_sparse(
    rows,
    sp_ids.with_values(positions),
    sp_weights,
    combiner,
    name=name,
    allow_fast_lookup=allow_fast_lookup,
  )


# TensorFlow's own would convert the variable to a tensor first. Other lookups
# call `embedding_lookup` of version 1.
for _params in (ShardedVariable, list[ShardedVariable]):
  tf.experimental.dispatch_for_api(
    tf.compat.v1.nn.embedding_lookup, {'params': _params}
  )(_embedding_lookup)
  for _ids in (tf.SparseTensor, tf.RaggedTensor):
    tf.experimental.dispatch_for_api(
      tf.nn.embedding_lookup_sparse, {'params': _params, 'sp_ids': _ids}
    )(_embedding_lookup_sparse)


def _clip(rows: tf.Tensor, ids: Any, max_norm: float) -> tf.Tensor:
  axes = list(range(tf.convert_to_tensor(ids).shape.rank, rows.shape.rank))
  return tf.clip_by_norm(rows, max_norm, axes=axes)
