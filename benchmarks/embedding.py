"""The steady speed of a large embedding, with a vocabulary and without.

With one it is measured against stock and a single process; a table that is
keyed by any id, against the one with a vocabulary.
"""

from collections.abc import Iterator

from benchmarks import dense
from benchmarks import steady
from benchmarks import tables

_WORKLOAD = 'Adagrad, 512 ids a step by Zipf(1.2)'
TITLE = f'A table of 1,000,000 rows of 32, {_WORKLOAD}'
_WHERE = '2 workers and 2 ps on one machine, coordinator, 20 a call'
_KEYED_TITLE = (
  f'Such a table in 2 shards, and one of as many keys, {_WORKLOAD}, {_WHERE}'
)
_MANY_TITLE = (
  '26 tables of 100,000 rows of 16, each on one ps, and as many keys, in as '
  f'many tables or in one, Adagrad, 128 examples a step by Zipf(1.2), {_WHERE}'
)
_STATIC = 'a row for each number'
_MODELS = {
  _STATIC: 'sharded',
  'any keys, all known': 'keyed',
  'any keys, all known, by age': 'evicting',
  'any keys, all new': 'new',
}
_MODELS_OF_MANY = {
  _STATIC: 'features',
  'any keys, each on one ps': 'unsharded_features',
  'any keys, each in 2 shards': 'keyed_features',
  'any keys, all in one table': 'features_of_one_table',
}


def compare(*, quick: bool) -> Iterator[tables.Table]:
  """Three tables."""
  yield dense.table_of('embedding', 'clicks', TITLE, quick=quick)
  for name, title, models in (
    ('embedding-keyed', _KEYED_TITLE, _MODELS),
    ('embedding-many', _MANY_TITLE, _MODELS_OF_MANY),
  ):
    yield steady.of_models(name, title, models, 'static', quick=quick)
