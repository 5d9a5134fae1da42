"""Numbers that policies of tables are given."""

import numpy as np
import pytest

import tfps

_embeddings = tfps.embeddings
_NAN = float('nan')


@pytest.mark.parametrize(
  ('kind', 'given', 'expected'),
  [
    (_embeddings.Lru, [1e7], [10_000_000]),
    (_embeddings.Lfu, [np.float32(8)], [8]),
    (_embeddings.Ttl, [None, 1e6], [None, 1_000_000]),
    (_embeddings.Ttl, [0.5], [0.5, None]),
    (_embeddings.Counter, [np.int64(2)], [2]),
    (_embeddings.BloomCounter, [2.0, 0.1, 1e4], [2, 0.1, 10_000]),
    (_embeddings.Storage, [1e9, '/tmp'], [10**9, '/tmp']),
  ],
)
def test_whole_numbers_of_other_types_become_integers(kind, given, expected):
  found = list(kind(*given).get_config().values())
  assert found == expected
  assert list(map(type, found)) == list(map(type, expected))


@pytest.mark.parametrize('value', [2.5, _NAN, float('inf'), True, '9', None])
@pytest.mark.parametrize(
  ('kind', 'name', 'others'),
  [
    (_embeddings.Lru, 'capacity', {}),
    (_embeddings.Lfu, 'capacity', {}),
    (_embeddings.Counter, 'min_count', {}),
    (_embeddings.BloomCounter, 'min_count', {}),
    (_embeddings.BloomCounter, 'capacity', {'min_count': 2}),
    (_embeddings.Storage, 'memory_bytes', {'directory': '/tmp'}),
  ],
)
def test_what_is_no_whole_number_is_refused(kind, name, others, value):
  with pytest.raises(
    ValueError,
    match=rf'^{kind.__name__}\(.*{name} is a whole number, not {value!r}\.$',
  ):
    kind(**{name: value}, **others)


@pytest.mark.parametrize(
  ('given', 'message'),
  [
    ({'steps': 0.5}, 'steps is a whole number, not 0.5'),
    ({'steps': -1.0}, 'steps is positive, not -1'),
    ({'steps': 1e30}, r'steps is less than 2\^63, not 10'),
    ({'secs': _NAN}, 'secs is positive, not nan'),
    ({'secs': float('inf')}, r'secs is less than 2\^63, not inf'),
  ],
)
def test_a_time_that_cannot_be_counted_is_refused(given, message):
  with pytest.raises(ValueError, match=message):
    _embeddings.Ttl(**given)
