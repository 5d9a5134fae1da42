"""The steady speed of a large embedding, against stock and a single process."""

from collections.abc import Iterator

from benchmarks import dense
from benchmarks import tables

TITLE = 'A table of 1,000,000 rows of 32, Adagrad, 512 ids a step by Zipf(1.2)'


def compare(*, quick: bool) -> Iterator[tables.Table]:
  """One table."""
  yield dense.table_of('embedding', 'clicks', TITLE, quick=quick)
