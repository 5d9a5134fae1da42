"""Columns and row groups of Parquet files, as the files' footers list them."""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import re
from typing import Any

import tensorflow as tf

from tfps.input import splits as splits_lib
from tfps.server import row_groups

_NUMBER = re.compile('-?[0-9]+')
_VIEWS = 'string_view', 'binary_view'  # unknown to older pyarrow
_SUPPORTED = (
  'integers, floats, booleans, strings, bytes, timestamps, dates and lists of '
  'these'
)


@dataclasses.dataclass(frozen=True)
class Group:
  """Row group of a file.

  Attributes:
    file: the index of the file.
    index: the index of the row group in the file.
    num_rows: how many rows it has.
  """

  file: int
  index: int
  num_rows: int


def listed(names: str | Sequence[str] | None) -> list[str]:
  """Returns names as a list, one name as a list of one."""
  if names is None:
    return []
  return [names] if isinstance(names, str) else list(names)


def files(paths: Sequence[str]) -> tuple[list[str], list[str]]:
  """Returns files, with those within folders in the folders' place.

  Args:
    paths: of files and folders.

  Returns:
    The files, and the names of the partitions that folders have. Files and
    folders whose names begin with `_` or `.` are left out, as engines write
    markers and what is not finished.

  Raises:
    ValueError: a folder has no files, or a file is there twice.
  """
  found: list[str] = []
  names: dict[str, None] = {}
  for path in paths:
    if not _is_folder(path):
      found.append(path)
      continue
    within = _files_within(path)
    if not within:
      raise ValueError(f'paths: the folder {path} has no files.')
    found += within
    for file in within:
      names |= dict.fromkeys(row_groups.partitions(file[len(path) :]))
  splits_lib.check_distinct(found, 'paths')
  return found, list(names)


def _is_folder(path: str) -> bool:
  try:
    return bool(tf.io.gfile.isdir(path))
  except tf.errors.OpError:  # a file system that only pyarrow knows
    return False


def _files_within(folder: str) -> list[str]:
  found = []
  for place, _, names in tf.io.gfile.walk(folder):
    below = place[len(folder) :].split('/')
    found += [
      f'{place.rstrip("/")}/{name}'
      for name in names
      if not any(part.startswith(('_', '.')) for part in (*below, name))
    ]
  return sorted(found)


def scan(
  paths: Sequence[str],
  partitions: Sequence[str],
  columns: Sequence[str] | None,
  labels: Sequence[str],
  fill: Mapping[str, Any],
) -> tuple[list[row_groups.Column], list[Group]]:
  """Returns the columns and the row groups of files.

  Args:
    paths: the files' paths.
    partitions: partitions that are features if `columns` is None.
    columns: the names of the features; None for all but the labels.
    labels: the names of the labels.
    fill: by column, a value for nulls.

  Returns:
    The columns, features first, and the row groups that have rows.

  Raises:
    ImportError: pyarrow is not installed.
    ValueError: see `Parquet`.
  """
  found: list[row_groups.Column] = []
  groups = []
  kinds = _partition_kinds(paths)
  for number, path in enumerate(paths):
    with row_groups.open_file(path) as file:
      metadata, schema = file.metadata, file.schema_arrow
    known = {name: kinds[name] for name in row_groups.partitions(path)}
    if not found:
      all_ = [*schema.names, *(n for n in partitions if n not in schema.names)]
      names = _names(path, all_, columns, labels)
      _check_fill(fill, names)
      found = [_column(path, schema, known, name, fill) for name in names]
    for column in found:
      same = _column(path, schema, known, column.name, fill)
      _check_same(column, same, path, paths)
    groups += [
      Group(number, i, metadata.row_group(i).num_rows)
      for i in range(metadata.num_row_groups)
      if metadata.row_group(i).num_rows
    ]
  if not groups:
    raise ValueError(f'paths: {_some(paths)} have no rows to read.')
  return found, groups


def _partition_kinds(paths: Sequence[str]) -> dict[str, str]:
  """Returns the kind of each partition of files: int64 if all values are."""
  kinds: dict[str, str] = {}
  for path in paths:
    for name, value in row_groups.partitions(path).items():
      is_number = value is None or (
        _NUMBER.fullmatch(value) and abs(int(value)) < 1 << 63
      )
      if not is_number or name not in kinds:
        kinds[name] = 'int64' if is_number else 'string'
  return kinds


def _names(
  path: str,
  all_: Sequence[str],
  columns: Sequence[str] | None,
  labels: Sequence[str],
) -> list[str]:
  """Returns the names of the columns to read, features first.

  Raises:
    ValueError: there are none, or one is given twice.
  """
  features = listed(columns)
  if columns is None:
    features = [name for name in all_ if name not in labels]
  if not features:
    raise ValueError(
      f'columns={columns!r}: give one name or more; {path} has '
      f'{", ".join(all_)}.'
    )
  names = [*features, *labels]
  for name in names:
    if names.count(name) > 1:
      raise ValueError(
        f'columns={features} and label={labels}: {name!r} is given more than '
        'once. Leave it out of one of them.'
      )
  return names


def _column(
  path: str,
  schema: Any,
  partitions: Mapping[str, str],
  name: str,
  fill: Mapping[str, Any],
) -> row_groups.Column:
  """Returns a column of a file, or of its folders.

  Raises:
    ValueError: the file does not have it, or its type is not supported.
  """
  import pyarrow as pa

  number = schema.names.count(name)
  if not number and name in partitions:
    _check_value(name, partitions[name], fill.get(name))
    return row_groups.Column(
      name, partitions[name], False, fill.get(name), is_partition=True
    )
  if number != 1:
    known = ', '.join([*schema.names, *partitions])
    raise ValueError(
      f'{path}: has {number or "no"} columns {name!r}, but {known}. Correct '
      'columns= or label=, or write the file again.'
    )
  type_ = schema.field(name).type
  is_list = (
    pa.types.is_list(type_)
    or pa.types.is_large_list(type_)
    or pa.types.is_fixed_size_list(type_)
  )
  kind = _kind(type_.value_type if is_list else type_)
  if kind is None:
    raise ValueError(
      f'{path}: the column {name!r} has the type {type_}, which cannot be '
      f'read. Supported are {_SUPPORTED}. Write it as one of them, or name the '
      'other columns: columns=[...].'
    )
  value = fill.get(name)
  _check_value(name, kind, value)
  return row_groups.Column(name, kind, is_list, value)


def _kind(type_: Any) -> str | None:
  """Returns the kind of values of a type of pyarrow; None if it has none."""
  import pyarrow as pa

  if pa.types.is_dictionary(type_):
    type_ = type_.value_type
  if (
    pa.types.is_string(type_)
    or pa.types.is_large_string(type_)
    or pa.types.is_binary(type_)
    or pa.types.is_large_binary(type_)
    or pa.types.is_fixed_size_binary(type_)
    or str(type_) in _VIEWS
  ):
    return 'string'
  if pa.types.is_timestamp(type_) or pa.types.is_date(type_):
    return row_groups.TIMESTAMP
  if pa.types.is_boolean(type_):
    return 'bool'
  if pa.types.is_integer(type_):
    return str(type_)
  if pa.types.is_floating(type_):
    return f'float{type_.bit_width}'
  return None


def _check_fill(fill: Mapping[str, Any], names: Sequence[str]) -> None:
  for name in fill:
    if name not in names:
      raise ValueError(
        f'fill: {name!r} is none of the columns that are read: '
        f'{", ".join(names)}.'
      )


def _check_value(name: str, kind: str, value: Any) -> None:
  """Checks the value that replaces a column's nulls."""
  import pyarrow as pa

  if value is None:
    return
  try:
    if isinstance(value, bool) != (kind == 'bool'):
      raise TypeError('a bool is for a column of bools')
    scalar = pa.scalar(value, row_groups.arrow_type(kind))
    if pa.types.is_integer(scalar.type) and scalar.as_py() != value:
      raise ValueError(f'it would be {scalar}')
  except (TypeError, ValueError, OverflowError) as error:
    raise ValueError(
      f'fill={{{name!r}: {value!r}}}: is not a value of a column of '
      f'{kind}s ({error}).'
    ) from error


def _check_same(
  first: row_groups.Column,
  column: row_groups.Column,
  path: str,
  paths: Sequence[str],
) -> None:
  if column != first:
    raise ValueError(
      f'{path}: the column {first.name!r} has {_described(column)}, but in '
      f'{paths[0]} it has {_described(first)}. Write all files with one type, '
      'or leave the column out: columns=[...].'
    )


def _described(column: row_groups.Column) -> str:
  if column.is_partition:
    return 'the value of a folder'
  return ('lists of ' if column.is_list else '') + f'{column.kind} values'


def _some(paths: Sequence[str]) -> str:
  more = f' and {len(paths) - 1} more' if len(paths) > 1 else ''
  return f'{paths[0]}{more}'
