"""Row groups of Parquet files, read in the process that executes a graph.

A server offers `read` to graphs: its own Python code reads a row group of a
file with pyarrow, and no other process does. See `host_functions`.
"""

from collections.abc import Sequence
import dataclasses
import json
from typing import Any
import urllib.parse

import numpy as np

from tfps._compat import host_functions

NAME = 'read_row_group'
TIMESTAMP = 'timestamp'

_TIME_UNIT = 'us'
_NULL = '__HIVE_DEFAULT_PARTITION__'


@dataclasses.dataclass(frozen=True)
class Column:
  """Column of a file, as it is read.

  Attributes:
    name: its name.
    kind: the type of its values: a type's name in TensorFlow, or 'timestamp'.
    is_list: whether a row has a list of values.
    fill: replaces nulls; None if there must be none.
    is_partition: whether the file's folders have its value; see `partitions`.
  """

  name: str
  kind: str
  is_list: bool
  fill: bool | int | float | str | None = None
  is_partition: bool = False


def offer() -> None:
  """Lets graphs that this process executes read row groups; may be repeated."""
  host_functions.offer(NAME, read)


def pyarrow_parquet() -> Any:
  """Returns the module pyarrow.parquet.

  Raises:
    ImportError: it is not installed; the error names the extra.
  """
  try:
    import pyarrow.parquet
  except ImportError as error:
    raise ImportError(
      f"{error}. Install the extra 'parquet', on the hosts of workers too: "
      "pip install 'tfps[parquet]'."
    ) from error
  return pyarrow.parquet


def name(path: str, group: int) -> str:
  """Returns the name of a row group, for errors."""
  return f'{path}, row group {group}'


def partitions(path: str) -> dict[str, str | None]:
  """Returns the values that a file's folders have for all of its rows.

  Folders are named as Hive, Spark and pyarrow name them, such as `day=2`, with
  percent-encoded characters.

  Args:
    path: of the file.

  Returns:
    Values by name; None for a null.
  """
  found: dict[str, str | None] = {}
  for folder in path.split('/')[:-1]:
    key, is_partition, value = folder.partition('=')
    if key and is_partition:
      text = None if value == _NULL else urllib.parse.unquote(value)
      found[urllib.parse.unquote(key)] = text
  return found


def open_file(path: str) -> Any:
  """Returns an open `pyarrow.parquet.ParquetFile`, a context manager.

  Args:
    path: of a local file, or a URI such as 'gs://bucket/file' that pyarrow's
      file systems know.

  Raises:
    ImportError: pyarrow is not installed.
    ValueError: the file is missing, cannot be read, or is not Parquet.
  """
  parquet = pyarrow_parquet()
  import pyarrow as pa

  try:
    return parquet.ParquetFile(_source(path))
  except FileNotFoundError as error:
    raise ValueError(f'{path}: there is no such file.') from error
  except pa.ArrowInvalid as error:
    raise ValueError(
      f'{path}: is not a Parquet file, or was cut short ({error}). Write it '
      'again, or leave it out.'
    ) from error
  except OSError as error:
    raise ValueError(
      f'{path}: cannot be read ({error}). Give a file that its tasks can read.'
    ) from error


def encode(columns: Sequence[Column]) -> str:
  """Returns columns as text, an argument of `read`."""
  return json.dumps([dataclasses.astuple(column) for column in columns])


def read(
  path: bytes, group: np.int64, num_rows: np.int64, columns: bytes
) -> list[np.ndarray]:
  """Returns the columns of a row group.

  Args:
    path: the file's.
    group: the index of the row group.
    num_rows: how many rows it had when the file was listed.
    columns: the result of `encode`.

  Returns:
    For each column its values, and after those of a column of lists where each
    row's values begin and the last one's end.

  Raises:
    ImportError: pyarrow is not installed here.
    ValueError: the row group cannot be read, has changed or has a null.
  """
  where = name(path.decode(), int(group))
  wanted = [Column(*fields) for fields in json.loads(columns)]
  try:
    table = _table(path.decode(), int(group), wanted)
    if table.num_rows != num_rows:
      raise ValueError(
        f'has {table.num_rows} rows, and had {num_rows} when the file was '
        'listed. Do not change files during training.'
      )
    return [
      array
      for column in wanted
      for array in _arrays(_of(column, table, path.decode()), column)
    ]
  except ImportError as error:
    raise ImportError(f'{where}: {error}') from error
  except (ValueError, NotImplementedError) as error:  # bases of pyarrow's
    reason = str(error).removeprefix(f'{path.decode()}: ')
    raise ValueError(f'{where}: {reason}') from error


def _source(path: str) -> Any:
  if '://' not in path:
    return path
  import pyarrow as pa
  import pyarrow.fs

  try:
    system, place = pyarrow.fs.FileSystem.from_uri(path)
  except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
    raise ValueError(
      f'{path}: is of no file system that pyarrow knows ({error}). Give a '
      'path, or a URI of one that it knows, such as s3://bucket/file.'
    ) from error
  return system.open_input_file(place)


def _table(path: str, group: int, columns: Sequence[Column]) -> Any:
  """Returns a row group's columns.

  Raises:
    ValueError: it cannot be read, or lacks a column.
  """
  names = [column.name for column in columns if not column.is_partition]
  with open_file(path) as file:
    missing = set(names) - set(file.schema_arrow.names)
    if missing or group >= file.num_row_groups:
      raise ValueError(
        f'the file has {file.num_row_groups} row groups and the columns '
        f'{", ".join(file.schema_arrow.names)}, which is not how it was '
        'listed. Do not change files during training.'
      )
    try:
      return file.read_row_group(group, columns=names)
    except OSError as error:
      raise ValueError(f'cannot be read ({error}).') from error


def _of(column: Column, table: Any, path: str) -> Any:
  """Returns the values of a column for all rows of a table of a file."""
  if not column.is_partition:
    return table.column(column.name)
  import pyarrow as pa

  value = partitions(path)[column.name]
  given = value if value is None or column.kind == 'string' else int(value)
  scalar = pa.scalar(given, arrow_type(column.kind))
  return pa.chunked_array([pa.repeat(scalar, table.num_rows)])


def _arrays(values: Any, column: Column) -> list[np.ndarray]:
  """Returns a column's values, and the bounds of its rows if it has lists."""
  import pyarrow as pa
  import pyarrow.compute

  if not column.is_list:
    return [_values(values, column, 'rows')]
  # Of one chunk, and with 64-bit bounds, of which one chunk is large enough.
  lists = values.cast(pa.large_list(values.type.value_type)).combine_chunks()
  if lists.null_count and column.fill is None:
    raise ValueError(_complaint(column, lists, 'rows'))
  lengths = pyarrow.compute.list_value_length(lists).fill_null(0)
  bounds = np.zeros(len(lists) + 1, np.int64)
  np.cumsum(lengths.to_numpy(zero_copy_only=False), out=bounds[1:])
  flat = pa.chunked_array([lists.flatten()])
  return [_values(flat, column, 'values of its lists'), bounds]


def _values(values: Any, column: Column, unit: str) -> np.ndarray:
  """Returns values without nulls, as an array.

  Raises:
    ValueError: there are nulls, and nothing to replace them by.
  """
  import pyarrow as pa

  if column.kind == TIMESTAMP:
    zone = getattr(values.type, 'tz', None)
    values = values.cast(pa.timestamp(_TIME_UNIT, zone), safe=False)
  values = values.cast(arrow_type(column.kind))
  if values.null_count:
    if column.fill is None:
      raise ValueError(_complaint(column, values, unit))
    values = values.fill_null(pa.scalar(column.fill, values.type))
  array: np.ndarray = values.to_numpy()
  return array


def arrow_type(kind: str) -> Any:
  """Returns the type of pyarrow that has a kind of values."""
  import pyarrow as pa

  return {TIMESTAMP: pa.int64(), 'string': pa.large_binary()}.get(
    kind
  ) or pa.type_for_alias(kind)


def _complaint(column: Column, values: Any, unit: str) -> str:
  return (
    f'the column {column.name!r} is null in {values.null_count} of '
    f'{len(values)} {unit}. Write it without nulls, or give a value for them: '
    f'fill={{{column.name!r}: ...}}.'
  )
