"""Rows of a Spark DataFrame, written to files once, for training to read.

Each partition becomes a file of `tf.train.Example` records, and a file is a
split of `tfps.input.SplitQueue`: each row is read once in each epoch.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
import functools
import json
import os
import posixpath
import re
from typing import Any
from typing import TYPE_CHECKING
import uuid

if TYPE_CHECKING:
  from tfps.input import splits as splits_lib

_LIST = 'rows.json'
# A file of `_write_part`; others in the folder are the user's.
_PART = re.compile(r'part-\d{5,}-[0-9a-f]{8}\.tfrecord')
# Spark's simple types -> the kind of feature, and the type of the tensor.
_TYPES = {
  'boolean': ('int64', 'bool'),
  'tinyint': ('int64', 'int8'),
  'smallint': ('int64', 'int16'),
  'int': ('int64', 'int32'),
  'bigint': ('int64', 'int64'),
  'float': ('float', 'float32'),
  'double': ('float', 'float32'),
  'string': ('bytes', 'string'),
  'binary': ('bytes', 'string'),
  'vector': ('float', 'float32'),  # of pyspark.ml
}


@dataclasses.dataclass(frozen=True)
class Column:
  """A column of the rows.

  Attributes:
    name: its name.
    type: Spark's name of the type of its values.
    lengths: the least and the greatest number of values in a row; None for
      a column of single values.
  """

  name: str
  type: str
  lengths: tuple[int, int] | None = None


@dataclasses.dataclass(frozen=True)
class Rows:
  """Files with the rows of a DataFrame; may be sent to tasks.

  `queue = tfps.input.SplitQueue(rows.splits())`, and in the `dataset_fn`
  `queue.dataset(context).batch(512).map(rows.parse)`.

  Attributes:
    directory: the folder of the files.
    files: their names, and how many rows each has.
    columns: the columns.
  """

  directory: str
  files: Mapping[str, int]
  columns: tuple[Column, ...]

  @property
  def num_rows(self) -> int:
    """The number of rows in all files."""
    return sum(self.files.values())

  def splits(self) -> 'splits_lib.Files':
    """Returns the files as splits, for a `SplitQueue`."""
    from tfps.input import splits as splits_lib

    return splits_lib.Files(
      posixpath.join(self.directory, name) for name in self.files
    )

  def parse(self, records: Any) -> dict[str, Any]:
    """Returns the columns of records, as a dictionary of tensors.

    Columns of arrays whose lengths differ are ragged. A column of doubles
    has become float32.

    Args:
      records: a string tensor: one record, or a batch of them.
    """
    import tensorflow as tf

    kinds = {'int64': tf.int64, 'float': tf.float32, 'bytes': tf.string}
    features = {}
    for column in self.columns:
      kind = kinds[_TYPES[column.type][0]]
      least, most = column.lengths or (1, 1)
      features[column.name] = (
        tf.io.FixedLenFeature([] if column.lengths is None else [most], kind)
        if least == most
        else tf.io.RaggedFeature(kind, row_splits_dtype=tf.int64)
      )
    read_one = records.shape.rank == 0
    parse = tf.io.parse_single_example if read_one else tf.io.parse_example
    parsed = parse(records, features)
    types = {column.name: _TYPES[column.type][1] for column in self.columns}
    return {
      name: value if types[name] == 'string' else tf.cast(value, types[name])
      for name, value in parsed.items()
    }


def write(
  dataframe: Any, directory: str | os.PathLike[str], *, num_files: int = 0
) -> Rows:
  """Writes the rows of a DataFrame, unless the directory has them already.

  Args:
    dataframe: the DataFrame. Its columns are numbers, booleans, strings, bytes,
      vectors or arrays of these.
    directory: a folder that the executors and all tasks see, as TensorFlow
      names it.
    num_files: how many partitions to make of the DataFrame, several for each
      worker; 0 for those that it has.

  Raises:
    ValueError: a column has a type that is not supported or a null, there are
      no rows, or the directory has rows with other columns.
  """
  import tensorflow as tf

  directory = os.fspath(directory)
  columns = _columns(dataframe.dtypes, dataframe.schema)
  if tf.io.gfile.exists(posixpath.join(directory, _LIST)):
    return _same(read(directory), columns)
  tf.io.gfile.makedirs(directory)
  if num_files:
    dataframe = dataframe.repartition(num_files)
  names = [column.name for column in columns]
  # Of a partition that is written twice, Spark returns one, so that its files
  # need no common name.
  parts = (
    dataframe.select(*(f'`{name}`' for name in names))
    .rdd.mapPartitionsWithIndex(
      functools.partial(_write_part, directory, columns)
    )
    .collect()
  )
  rows = Rows(directory, {p.name: p.num_rows for p in parts}, _merged(parts))
  if not parts:
    raise ValueError('The DataFrame has no rows to write.')
  for name in tf.io.gfile.listdir(directory):
    if _PART.fullmatch(name) and name not in rows.files:
      tf.io.gfile.remove(posixpath.join(directory, name))
  _write_list(rows)
  return rows


def read(directory: str | os.PathLike[str]) -> Rows:
  """Returns the rows that `write` has written.

  Args:
    directory: the folder.

  Raises:
    ValueError: the folder has none.
  """
  import tensorflow as tf

  directory = os.fspath(directory)
  try:
    with tf.io.gfile.GFile(posixpath.join(directory, _LIST)) as file:
      fields = json.loads(file.read())
  except tf.errors.NotFoundError as error:
    raise ValueError(
      f'{directory} has no {_LIST}: no rows were written there to the end.'
    ) from error
  columns = tuple(
    Column(name, type_, lengths and tuple(lengths))
    for name, type_, lengths in fields['columns']
  )
  return Rows(directory, fields['files'], columns)


@dataclasses.dataclass(frozen=True)
class _Part:
  """A partition's file."""

  name: str
  num_rows: int
  columns: tuple[Column, ...]


def _columns(
  dtypes: Iterable[tuple[str, str]], schema: Any
) -> tuple[Column, ...]:
  """Returns the columns of a DataFrame.

  Raises:
    ValueError: one has a type that is not supported.
  """
  columns = []
  for name, simple in dtypes:
    is_vector = type(schema[name].dataType).__name__ == 'VectorUDT'
    is_list = is_vector or simple.startswith('array<')
    inner = 'vector' if is_vector else simple
    inner = inner.removeprefix('array<').removesuffix('>')
    if inner not in _TYPES:
      raise ValueError(
        f'The column {name!r} has the type {simple}. Cast it to one of '
        f'{", ".join(_TYPES)} or an array of these, or leave it out.'
      )
    columns.append(Column(name, inner, (0, 0) if is_list else None))
  return tuple(columns)


def _write_part(
  directory: str, columns: tuple[Column, ...], index: int, rows: Iterable[Any]
) -> Iterator[_Part]:
  """Writes a partition to a file, if it has rows."""
  import tensorflow as tf

  name = f'part-{index:05d}-{uuid.uuid4().hex[:8]}.tfrecord'
  lengths: list[set[int]] = [set() for _ in columns]
  number = 0
  writer = None
  try:
    for row in rows:
      if writer is None:
        writer = tf.io.TFRecordWriter(posixpath.join(directory, name))
      features = {}
      for column, value, seen in zip(columns, row, lengths, strict=True):
        values = _values(column, value)
        seen.add(len(values))
        features[column.name] = _feature(tf, column, values)
      example = tf.train.Example(features=tf.train.Features(feature=features))
      writer.write(example.SerializeToString())
      number += 1
  finally:
    if writer is not None:
      writer.close()
  if number:
    seen_columns = tuple(
      column
      if column.lengths is None
      else dataclasses.replace(column, lengths=(min(seen), max(seen)))
      for column, seen in zip(columns, lengths, strict=True)
    )
    yield _Part(name, number, seen_columns)


def _values(column: Column, value: Any) -> list[Any]:
  """Returns a row's values of a column.

  Raises:
    ValueError: one is null.
  """
  if column.lengths is None:
    values = [value]
  elif hasattr(value, 'toArray'):
    values = value.toArray().tolist()
  else:
    values = [None] if value is None else list(value)
  if None in values:
    raise ValueError(
      f'The column {column.name!r} has a null. Replace nulls by '
      'DataFrame.fillna, or drop their rows by DataFrame.dropna.'
    )
  return values


def _feature(tf: Any, column: Column, values: list[Any]) -> Any:
  kind = _TYPES[column.type][0]
  if kind == 'int64':
    return tf.train.Feature(
      int64_list=tf.train.Int64List(value=[int(v) for v in values])
    )
  if kind == 'float':
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))
  encoded = [v.encode() if isinstance(v, str) else bytes(v) for v in values]
  return tf.train.Feature(bytes_list=tf.train.BytesList(value=encoded))


def _merged(parts: Iterable[_Part]) -> tuple[Column, ...]:
  """Returns columns with the lengths of all partitions."""
  merged = []
  for same in zip(*(part.columns for part in parts), strict=True):
    lengths = [each.lengths for each in same if each.lengths is not None]
    bounds = lengths and (
      min(least for least, _ in lengths),
      max(most for _, most in lengths),
    )
    merged.append(dataclasses.replace(same[0], lengths=bounds or None))
  return tuple(merged)


def _same(rows: Rows, columns: tuple[Column, ...]) -> Rows:
  """Returns earlier rows.

  Raises:
    ValueError: they have other columns.
  """
  found, wanted = (
    [(each.name, each.type) for each in some]
    for some in (rows.columns, columns)
  )
  if found != wanted:
    raise ValueError(
      f'{rows.directory} has rows with the columns {found}, and the DataFrame '
      f'has {wanted}. Give another directory, or remove this one.'
    )
  return rows


def _write_list(rows: Rows) -> None:
  """Writes the list of the files, which comes last."""
  import tensorflow as tf

  path = posixpath.join(rows.directory, _LIST)
  fields = {
    'files': dict(rows.files),
    'columns': [[c.name, c.type, c.lengths] for c in rows.columns],
  }
  with tf.io.gfile.GFile(f'{path}.new', 'w') as file:
    file.write(json.dumps(fields, indent=1))
  tf.io.gfile.rename(f'{path}.new', path, overwrite=True)
