"""Rows of Criteo's display advertising data: a click, 13 numbers, 26 ids.

In Criteo's files a row is a line of 40 fields with tabs between them: 1 or 0,
13 integers, and 26 ids of 8 hexadecimal digits. Any field but the first may be
empty.
"""

import collections
from collections.abc import Iterable
from collections.abc import Iterator
import dataclasses
import pathlib

import numpy as np
import pyarrow as pa
from pyarrow import csv
from pyarrow import parquet

NUM_NUMBERS, NUM_CATEGORIES = 13, 26
MISSING_ID = 0

SCHEMA = pa.schema(
  {
    'clicked': pa.int64(),
    'numbers': pa.list_(pa.float32()),
    'ids': pa.list_(pa.int64()),
  }
)

# Workers share out row groups, so there have to be more of these than workers.
ROWS_PER_GROUP = 4096

_DIGITS = 8
_NUMBERS = [f'number_{i}' for i in range(NUM_NUMBERS)]
_IDS = [f'id_{i}' for i in range(NUM_CATEGORIES)]
_TYPES = {
  'clicked': pa.int64(),
  **dict.fromkeys(_NUMBERS, pa.float32()),
  **dict.fromkeys(_IDS, pa.string()),
}
_NO_DIGIT = 16
_VALUES = np.full(256, _NO_DIGIT, np.int64)
for _digit in '0123456789abcdefABCDEF':
  _VALUES[ord(_digit)] = int(_digit, 16)


@dataclasses.dataclass(frozen=True)
class Rows:
  """Some rows, in the order of time.

  Attributes:
    clicked: 1 or 0, int64 of shape [rows].
    numbers: float32 of shape [rows, 13]; NaN where one is missing.
    ids: int64 of shape [rows, 26]; 0 where one is missing.
  """

  clicked: np.ndarray
  numbers: np.ndarray
  ids: np.ndarray

  def __len__(self) -> int:
    return len(self.clicked)

  def __getitem__(self, part: slice) -> 'Rows':
    return Rows(self.clicked[part], self.numbers[part], self.ids[part])

  def table(self) -> pa.Table:
    """Returns three columns; numbers and ids are lists, with nulls."""
    columns = [
      pa.array(self.clicked),
      _lists(self.numbers, np.isnan(self.numbers)),
      _lists(self.ids, self.ids == MISSING_ID),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def joined(parts: Iterable[Rows]) -> Rows:
  """Returns the rows of some parts, one after the other."""
  columns = zip(*((p.clicked, p.numbers, p.ids) for p in parts), strict=True)
  return Rows(*map(np.concatenate, columns))


def read_tsv(path: pathlib.Path) -> Iterator[Rows]:
  """Yields the rows of one of Criteo's files, some megabytes at a time.

  Args:
    path: of the file, which may end in .gz.

  Raises:
    pa.ArrowInvalid: a line has another number of fields, or no number where
      one should be.
    ValueError: an id does not have 8 hexadecimal digits.
  """
  reader = csv.open_csv(
    path,
    read_options=csv.ReadOptions(column_names=list(_TYPES), block_size=1 << 23),
    parse_options=csv.ParseOptions(delimiter='\t', quote_char=False),
    convert_options=csv.ConvertOptions(
      column_types=_TYPES, null_values=[''], strings_can_be_null=True
    ),
  )
  for batch in reader:
    columns = dict(zip(_TYPES, batch.columns, strict=True))
    yield Rows(
      columns['clicked'].to_numpy(zero_copy_only=False),
      np.stack([_floats(columns[name]) for name in _NUMBERS], axis=1),
      np.stack([_parsed(columns[name], path) for name in _IDS], axis=1),
    )


def write_parquet(
  folder: pathlib.Path, parts: Iterable[Rows], num_held_out: int
) -> None:
  """Writes rows to `train.parquet` and `test.parquet`.

  Args:
    folder: where; it is made if it does not exist.
    parts: the rows, some at a time.
    num_held_out: how many of the last rows are held out.

  Raises:
    ValueError: there are no more rows than that.
  """
  folder.mkdir(parents=True, exist_ok=True)
  last: collections.deque[Rows] = collections.deque()
  num_last = 0
  with parquet.ParquetWriter(folder / 'train.parquet', SCHEMA) as training:

    def write_training(part: Rows) -> None:
      training.write_table(part.table(), row_group_size=ROWS_PER_GROUP)

    for part in parts:
      last.append(part)
      num_last += len(part)
      while num_last - len(last[0]) > num_held_out:
        num_last -= len(last[0])
        write_training(last.popleft())
    if num_last <= num_held_out:
      raise ValueError(
        f'{num_last} rows, of which {num_held_out} are to be held out: none '
        'would be left to train on.'
      )
    rest = joined(last)
    write_training(rest[: num_last - num_held_out])
  held_out = rest[num_last - num_held_out :]
  parquet.write_table(
    held_out.table(), folder / 'test.parquet', row_group_size=ROWS_PER_GROUP
  )


def _floats(column: pa.Array) -> np.ndarray:
  return column.to_numpy(zero_copy_only=False).astype(np.float32)


def _parsed(column: pa.Array, path: pathlib.Path) -> np.ndarray:
  """Returns ids as integers."""
  texts = column.fill_null('0' * _DIGITS).to_numpy(zero_copy_only=False)
  codes = texts.astype('S')
  digits = np.full(1, _NO_DIGIT)
  if codes.itemsize == _DIGITS:
    digits = _VALUES[codes.view(np.uint8)].reshape(-1, _DIGITS)
  if (digits == _NO_DIGIT).any():
    raise ValueError(
      f'{path}: an id does not have {_DIGITS} hexadecimal digits.'
    )
  return digits @ (16 ** np.arange(_DIGITS)[::-1])


def _lists(values: np.ndarray, are_missing: np.ndarray) -> pa.Array:
  number, width = values.shape
  ends = np.arange(0, number * width + 1, width, dtype=np.int32)
  flat = pa.array(values.ravel(), mask=are_missing.ravel())
  return pa.ListArray.from_arrays(ends, flat)
