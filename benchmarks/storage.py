"""The steady speed of a table of which three quarters are in files."""

from collections.abc import Iterator

from benchmarks import steady
from benchmarks import tables

_TITLE = (
  'A table of 1,000,000 keys, rows of 32 and a slot, in 2 shards, Adagrad, 512 '
  'ids a step drawn by Zipf(1.2), 2 workers and 2 ps on one machine, '
  'coordinator, 20 a call'
)
_MODELS = {'all in memory': 'drawn', 'a quarter in memory': 'stored'}


def compare(*, quick: bool) -> Iterator[tables.Table]:
  """One table."""
  yield steady.of_models('storage', _TITLE, _MODELS, 'in memory', quick=quick)
