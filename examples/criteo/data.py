"""Command that writes rows in Criteo's format as Parquet files.

    python examples/criteo/data.py --out=runs/criteo/data --rows=220000
    python examples/criteo/data.py --out=runs/criteo/data --tsv=train.txt

The first writes synthetic rows, see `synthetic.py`; the second converts files
of Criteo's. The last rows are held out, in `test.parquet`; all others are in
`train.parquet`.
"""

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


def main(_: list[str]) -> None:
  folder = pathlib.Path(_OUT.value)
  if _TSV.value:
    files = map(rows_lib.read_tsv, map(pathlib.Path, _TSV.value))
    parts: Iterable[rows_lib.Rows] = itertools.chain.from_iterable(files)
  else:
    clicks = synthetic.Clicks(_SEED.value)
    parts = clicks.batches(_ROWS.value, rows_lib.ROWS_PER_GROUP)
  rows_lib.write_parquet(folder, parts, _HELD_OUT.value)
  for path in sorted(folder.glob('*.parquet')):
    print(f'{path}: {parquet.read_metadata(path).num_rows:,} rows')


if __name__ == '__main__':
  app.run(main)
