"""Columns and row groups of Parquet files, as the files' footers list them."""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from typing import Any

from tfps.server import row_groups

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


def scan(
  paths: Sequence[str],
  columns: Sequence[str] | None,
  labels: Sequence[str],
  fill: Mapping[str, Any],
) -> tuple[list[row_groups.Column], list[Group]]:
  """Returns the columns and the row groups of files.

  Args:
    paths: the files' paths.
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
  for number, path in enumerate(paths):
    with row_groups.open_file(path) as file:
      metadata, schema = file.metadata, file.schema_arrow
    if not found:
      names = _names(path, schema, columns, labels)
      _check_fill(fill, names)
      found = [_column(path, schema, name, fill) for name in names]
    for column in found:
      _check_same(column, _column(path, schema, column.name, fill), path, paths)
    groups += [
      Group(number, i, metadata.row_group(i).num_rows)
      for i in range(metadata.num_row_groups)
      if metadata.row_group(i).num_rows
    ]
  if not groups:
    raise ValueError(f'paths: {_some(paths)} have no rows to read.')
  return found, groups


def _names(
  path: str,
  schema: Any,
  columns: Sequence[str] | None,
  labels: Sequence[str],
) -> list[str]:
  """Returns the names of the columns to read, features first.

  Raises:
    ValueError: there are none, or one is given twice.
  """
  features = listed(columns)
  if columns is None:
    features = [name for name in schema.names if name not in labels]
  if not features:
    raise ValueError(
      f'columns={columns!r}: give one name or more; {path} has '
      f'{", ".join(schema.names)}.'
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
  path: str, schema: Any, name: str, fill: Mapping[str, Any]
) -> row_groups.Column:
  """Returns a column of a file.

  Raises:
    ValueError: the file does not have it, or its type is not supported.
  """
  import pyarrow as pa

  number = schema.names.count(name)
  if number != 1:
    raise ValueError(
      f'{path}: has {number or "no"} columns {name!r}, but '
      f'{", ".join(schema.names)}. Correct columns= or label=, or write the '
      'file again.'
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
  return ('lists of ' if column.is_list else '') + f'{column.kind} values'


def _some(paths: Sequence[str]) -> str:
  more = f' and {len(paths) - 1} more' if len(paths) > 1 else ''
  return f'{paths[0]}{more}'
