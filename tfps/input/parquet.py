"""Splits that are row groups of Parquet files, read with pyarrow."""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import os
from typing import Any

import tensorflow as tf

from tfps._compat import host_functions
from tfps.input import parquet_footers
from tfps.input import splits as splits_lib
from tfps.server import row_groups


class Parquet:
  """Splits that are row groups of Parquet files, as batches of columns.

  `queue = tfps.input.SplitQueue(tfps.input.Parquet('/data/*.parquet',
  label='y', batch_size=512))`, and in the `dataset_fn`
  `return queue.dataset(context)`.

  The footers of all files are read here. A row group is read as a whole by the
  process that needs its rows, a worker's, with its own pyarrow: under a
  coordinator the workers must be servers of tfps, as `tfps.serve` starts them.

  An element is a dictionary of the columns by name, or with `label` a pair
  `(features, label)`. Integers, floats and booleans keep their types; strings
  and bytes are string tensors; timestamps and dates are int64, microseconds
  since 1970-01-01 (UTC, if they have a time zone), without what is finer.
  Columns of lists are `tf.RaggedTensor`s of int64 row splits.

  Args:
    paths: a path or a glob pattern, or several; as for `Files`. A folder stands
      for all files within it whose names do not begin with `_` or `.`. Paths
      may be URIs that both TensorFlow (for patterns and folders) and pyarrow
      know.
    columns: the names of the features; all but `label` by default. What a path
      has as a folder `day=2` is a column `day`, of int64 if all its values are
      integers, else of strings; by default, only of folders within `paths`.
    label: the name of the column that is the label, or several names for a
      dictionary of them; None for elements without a label.
    batch_size: how many rows a batch has; the last one of a row group may have
      fewer. None for single rows, to be shuffled and batched.
    fill: by column, a value for nulls. For a column of lists it replaces nulls
      in the lists, and a null instead of a list becomes an empty one. In any
      other column, a null is an error that names file, row group and column.

  Attributes:
    paths: the files' paths.
    num_rows: the number of rows of all files.

  Raises:
    ImportError: pyarrow is not installed.
    TypeError: `paths` has something else than paths.
    ValueError: a pattern matches no file, a file cannot be read or has no such
      column, its type is not supported or another one than in the first file,
      there are no rows, or an argument is wrong.
  """

  def __init__(
    self,
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    columns: Sequence[str] | None = None,
    label: str | Sequence[str] | None = None,
    batch_size: int | None = None,
    fill: Mapping[str, bool | int | float | str] | None = None,
  ) -> None:
    row_groups.pyarrow_parquet()
    if batch_size is not None and (
      not isinstance(batch_size, int) or batch_size < 1
    ):
      raise ValueError(
        f'Parquet: batch_size={batch_size!r} must be 1 or more, or None for '
        'single rows.'
      )
    found = splits_lib.expand(paths, name='paths')
    self.paths, partitions = parquet_footers.files(found)
    self._batch_size = batch_size
    self._label = label or None
    labels = parquet_footers.listed(label)
    self._columns, self._groups = parquet_footers.scan(
      self.paths, partitions, columns, labels, dict(fill or {})
    )
    self._num_features = len(self._columns) - len(labels)
    self.num_rows = sum(group.num_rows for group in self._groups)
    row_groups.offer()

  def __len__(self) -> int:
    return len(self._groups)

  def read(self, split: tf.Tensor) -> tf.data.Dataset:
    """Returns the batches of a row group. See `Splits`."""
    return tf.data.Dataset.from_tensors(split).flat_map(self._batches)

  def dataset(
    self,
    context: tf.distribute.InputContext | None = None,
    *,
    shuffle_seed: int | None = None,
  ) -> tf.data.Dataset:
    """Returns the batches of all row groups, without a queue.

    Args:
      context: of a `dataset_fn`, for one worker's fixed share of the row
        groups: every `num_input_pipelines`-th. None for all of them.
      shuffle_seed: makes the order of row groups differ in each iteration; by
        default they are read in their own order.

    Returns:
      A dataset that holds about one row group in memory.

    Raises:
      ValueError: there are fewer row groups than workers.
    """
    splits = tf.data.Dataset.range(len(self))
    if context is not None:
      number = context.num_input_pipelines
      if len(self) < number:
        raise ValueError(
          f'Parquet: {len(self)} row groups cannot be shared out to {number} '
          'workers: some would have none. Write files with smaller row groups.'
        )
      splits = splits.shard(number, context.input_pipeline_id)
    if shuffle_seed is not None:
      splits = splits.shuffle(len(self), seed=shuffle_seed)
    return splits.flat_map(self._batches)

  def name(self, split: int) -> str:
    """Returns the path of a file and the index of a row group. See `Splits`."""
    group = self._groups[split]
    return row_groups.name(self.paths[group.file], group.index)

  def is_named(self, split: int, text: str) -> bool:
    """Returns whether a text has the name of a row group. See `Splits`."""
    return self.name(split) in text

  def fingerprint(self, *, with_batches: bool = False) -> int:
    """Returns a 64-bit hash of the files' places and their rows' numbers.

    See `Splits`.
    """
    places = splits_lib.places(self.paths)
    return splits_lib.hash_of(
      *(f'{places[group.file]} {group.num_rows}' for group in self._groups),
      *([f'batch_size={self._batch_size}'] if with_batches else []),
    )

  def _batches(self, split: tf.Tensor) -> tf.data.Dataset:
    rows = self._rows(split)
    if self._batch_size is None:
      return tf.data.Dataset.from_tensor_slices(rows)
    size = tf.constant(self._batch_size, tf.int64)
    num_rows = self._of(split, [group.num_rows for group in self._groups])

    def batch(start: tf.Tensor) -> Any:
      return tf.nest.map_structure(
        lambda all_: all_[start : start + size], rows
      )

    return tf.data.Dataset.range(0, num_rows, size).map(batch)

  def _rows(self, split: tf.Tensor) -> Any:
    """Returns the columns of a whole row group, as an element has them."""
    groups = self._groups
    arguments = [
      tf.gather(self.paths, self._of(split, [group.file for group in groups])),
      self._of(split, [group.index for group in groups]),
      self._of(split, [group.num_rows for group in groups]),
      row_groups.encode(self._columns),
    ]
    dtypes = [dtype for each in self._columns for dtype in _dtypes(each)]
    arrays = iter(host_functions.call(row_groups.NAME, arguments, dtypes))
    values = {each.name: _tensor(each, arrays) for each in self._columns}
    names = [each.name for each in self._columns]
    features = {name: values[name] for name in names[: self._num_features]}
    if self._label is None:
      return features
    if isinstance(self._label, str):
      return features, values[self._label]
    return features, {name: values[name] for name in self._label}

  def _of(self, split: tf.Tensor, values: Sequence[int]) -> tf.Tensor:
    return tf.gather(tf.constant(values, tf.int64), split)


def _dtypes(column: row_groups.Column) -> list[tf.DType]:
  is_time = column.kind == row_groups.TIMESTAMP
  dtype = tf.int64 if is_time else tf.as_dtype(column.kind)
  return [dtype, tf.int64] if column.is_list else [dtype]


def _tensor(column: row_groups.Column, arrays: Iterator[tf.Tensor]) -> Any:
  """Returns a column's next results of `row_groups.read` as one tensor."""
  values = tf.ensure_shape(next(arrays), [None])
  if not column.is_list:
    return values
  return tf.RaggedTensor.from_row_splits(
    values, tf.ensure_shape(next(arrays), [None]), validate=False
  )
