"""Families of metrics, and buckets of histograms."""

import math
import pathlib
import re

import pytest

from tfps.monitor import families

_PAGE = pathlib.Path(__file__).parents[3] / 'docs' / 'monitoring.md'
_ALL = [
  value
  for value in vars(families).values()
  if isinstance(value, families.Family)
]


@pytest.mark.parametrize('family', _ALL, ids=lambda family: family.name)
def test_a_name_is_one_of_prometheus_and_tells_counters(family):
  assert re.fullmatch(r'tfps_[a-z_]+', family.name)
  is_counter = family.kind is families.Kind.COUNTER
  assert family.name.endswith('_total') == is_counter
  assert not {'job', 'task', 'le'} & set(family.labels)
  assert family.help.endswith('.')


def test_names_are_unique():
  names = [family.name for family in _ALL]
  assert len(set(names)) == len(names) > 20


@pytest.mark.parametrize(
  ('counts', 'bounds', 'sums', 'total'),
  [
    pytest.param([3], [math.inf], [3], 0, id='one bin'),
    pytest.param([3, 4], [0, math.inf], [3, 7], 4, id='two bins'),
    pytest.param(
      [1, 2, 3, 4, 5, 6, 7, 8],
      [0, 1, 3, math.inf],
      [1, 3, 10, 36],
      2 + 6 + 12 + 20 + 30 + 42 + 56,
      id='eight bins',
    ),
  ],
)
def test_buckets_of_numbers(counts, bounds, sums, total):
  buckets = families.Buckets.of_numbers(counts)
  assert list(buckets.bounds) == bounds
  assert list(buckets.counts) == sums
  assert buckets.total == total


@pytest.mark.parametrize('family', _ALL, ids=lambda family: family.name)
def test_the_page_tells_the_family(family):
  labels = f'{{{", ".join(family.labels)}}}' if family.labels else ''
  row = f'| `{family.name}{labels}` | {family.kind.value} | {family.help} |'
  assert row in _PAGE.read_text().splitlines()
