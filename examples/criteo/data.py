"""Command that writes rows in Criteo's format as Parquet files.

    python examples/criteo/data.py --out=runs/criteo/data --rows=220000
    python examples/criteo/data.py --out=runs/criteo/data --tsv=train.txt

The first writes synthetic rows, see `synthetic.py`; the second converts files
of Criteo's. The last rows are held out, in `test.parquet`; all others are in
`train.parquet`.
"""

import collections
from collections.abc import Iterable
import itertools
import pathlib

from absl import app
from absl import flags
from pyarrow import parquet
import rows as rows_lib
import synthetic

_OUT = flags.DEFINE_string('out', 'runs/criteo/data', 'Folder to write to.')
_ROWS = flags.DEFINE_integer('rows', 220_000, 'How many synthetic rows.')
_SEED = flags.DEFINE_integer('seed', 1, 'Of synthetic rows.')
_TSV = flags.DEFINE_multi_string(
  'tsv', [], "Files of Criteo's to convert instead, in the order of time."
)
_HELD_OUT = flags.DEFINE_integer(
  'held_out', 20_000, 'How many of the last rows to hold out.'
)

# Workers share out row groups, so there have to be more of these than workers.
_ROWS_PER_GROUP = 4096


def main(_: list[str]) -> None:
  folder = pathlib.Path(_OUT.value)
  if _TSV.value:
    files = map(rows_lib.read_tsv, map(pathlib.Path, _TSV.value))
    parts: Iterable[rows_lib.Rows] = itertools.chain.from_iterable(files)
  else:
    clicks = synthetic.Clicks(_SEED.value)
    parts = clicks.batches(_ROWS.value, _ROWS_PER_GROUP)
  write(folder, parts, _HELD_OUT.value)
  for path in sorted(folder.glob('*.parquet')):
    print(f'{path}: {parquet.read_metadata(path).num_rows:,} rows')


def write(
  folder: pathlib.Path, parts: Iterable[rows_lib.Rows], num_held_out: int
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
  last: collections.deque[rows_lib.Rows] = collections.deque()
  num_last = 0
  schema = rows_lib.SCHEMA
  with parquet.ParquetWriter(folder / 'train.parquet', schema) as training:

    def write_training(part: rows_lib.Rows) -> None:
      training.write_table(part.table(), row_group_size=_ROWS_PER_GROUP)

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
    rest = rows_lib.joined(last)
    write_training(rest[: num_last - num_held_out])
  held_out = rest[num_last - num_held_out :]
  parquet.write_table(
    held_out.table(), folder / 'test.parquet', row_group_size=_ROWS_PER_GROUP
  )


if __name__ == '__main__':
  app.run(main)
