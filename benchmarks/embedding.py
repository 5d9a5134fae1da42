"""The steady speed of a large embedding, with a vocabulary and without.

With one it is measured against stock and a single process; a table that is
keyed by any id, against the one with a vocabulary.
"""

from collections.abc import Iterator

from benchmarks import dense
from benchmarks import steady
from benchmarks import steady_task as task
from benchmarks import tables

_WORKLOAD = 'Adagrad, 512 ids a step by Zipf(1.2)'
TITLE = f'A table of 1,000,000 rows of 32, {_WORKLOAD}'
_KEYED_TITLE = (
  f'Such a table in 2 shards, and one of as many keys, {_WORKLOAD}, 2 workers '
  'and 2 ps on one machine, coordinator, 20 a call'
)
_STATIC = 'a row for each number'
_MODELS = {
  _STATIC: 'sharded',
  'any keys, all known': 'keyed',
  'any keys, all known, by age': 'evicting',
  'any keys, all new': 'new',
}


def compare(*, quick: bool) -> Iterator[tables.Table]:
  """Two tables."""
  yield dense.table_of('embedding', 'clicks', TITLE, quick=quick)
  by_name = {
    name: steady.side(task.COORDINATOR, model)
    for name, model in _MODELS.items()
  }
  turns = steady.in_turns(by_name, quick=quick)
  base = (_STATIC, 'static')
  yield steady.table('embedding-keyed', _KEYED_TITLE, turns, base=base)
