"""How flows share links."""

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from tfps.plan import fluid

_INF = float('inf')


def _share(rates, paths, most=None, active=None):
  network = fluid.Network(rates, paths, most or [_INF] * len(paths))
  is_active = [True] * len(paths) if active is None else active
  return network.share(np.array(is_active)).tolist()


@pytest.mark.parametrize(
  ('rates', 'paths', 'expected'),
  [
    ([10.0], [[0]], [10]),
    ([10.0], [[0], [0]], [5, 5]),
    ([10.0, 4.0], [[0], [0, 1]], [6, 4]),
    # One flow over both of two links, and one over each: D. Bertsekas, R.
    # Gallager, example 6.5.
    ([1.0, 2.0], [[0, 1], [0], [1]], [0.5, 0.5, 1.5]),
    ([3.0, 1.0], [[0], [1], []], [3, 1, _INF]),
  ],
)
def test_no_flow_could_have_more_without_taking_it(rates, paths, expected):
  assert _share(rates, paths) == pytest.approx(expected)


def test_a_flow_may_have_a_limit_of_its_own():
  assert _share([10.0], [[0], [0]], [2.0, _INF]) == pytest.approx([2, 8])


def test_a_flow_that_is_not_active_has_nothing():
  assert _share([10.0], [[0], [0]], active=[False, True]) == [0, 10]


@hypothesis.given(
  rates=st.lists(st.floats(0.5, 100), min_size=1, max_size=5),
  seed=st.integers(0, 1000),
)
def test_shares_fill_a_link_of_every_flow(rates, seed):
  random = np.random.default_rng(seed)
  paths = [
    random.choice(len(rates), random.integers(1, len(rates) + 1), replace=False)
    for _ in range(6)
  ]
  found = _share(rates, paths)
  loads = [
    sum(x for x, path in zip(found, paths, strict=True) if link in path)
    for link in range(len(rates))
  ]
  for rate, load in zip(rates, loads, strict=True):
    assert load <= rate * (1 + 1e-5)
  for own, path in zip(found, paths, strict=True):
    assert any(
      loads[link] >= rates[link] * (1 - 1e-4)
      and own
      >= max(x for x, p in zip(found, paths, strict=True) if link in p)
      * (1 - 1e-4)
      for link in path
    )
