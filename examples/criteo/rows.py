"""Rows of Criteo's display advertising data: a click, 13 numbers, 26 ids.

In Criteo's files a row is a line of 40 fields with tabs between them: 1 or 0,
13 integers, and 26 ids of 8 hexadecimal digits. Any field but the first may be
empty.
"""

from collections.abc import Iterable
from collections.abc import Iterator
import dataclasses
import pathlib

import numpy as np
import pyarrow as pa
from pyarrow import csv

NUM_NUMBERS, NUM_CATEGORIES = 13, 26
MISSING_ID = 0

SCHEMA = pa.schema(
  {
    'clicked': pa.int64(),
    'numbers': pa.list_(pa.float32()),
    'ids': pa.list_(pa.int64()),
  }
)

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
